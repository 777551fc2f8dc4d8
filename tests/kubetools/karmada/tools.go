//go:build tools

// Package tools pins Karmada's programs, which `tools/kube-tools karmada-controller-manager karmada-scheduler` builds.
package tools

import (
	_ "github.com/karmada-io/karmada/cmd/controller-manager"
	_ "github.com/karmada-io/karmada/cmd/scheduler"
	_ "github.com/karmada-io/karmada/cmd/webhook"
)
