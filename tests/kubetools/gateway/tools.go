//go:build tools

// Package gateway pins what is built of the conformance suite.
package gateway

import _ "sigs.k8s.io/gateway-api/conformance"
