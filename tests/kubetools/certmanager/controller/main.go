// cert-manager runs cert-manager's own controllers of issuers, approval and CA signing, as its cmd/controller does,
// which is a module of its own that no release tags: without it, nothing of ACME, Vault or cloud providers is linked.
//
//	cert-manager KUBECONFIG
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	"github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	"github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	"golang.org/x/sync/errgroup"
)

const resources = "cert-manager"

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:         os.Args[1],
		KubernetesAPIQPS:   50,
		KubernetesAPIBurst: 100,
		IssuerOptions:      controller.IssuerOptions{ClusterResourceNamespace: resources},
	})
	if err != nil {
		return err
	}
	built, err := factory.Build()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	var all []controller.Interface
	for _, name := range []string{issuers.ControllerName, clusterissuers.ControllerName, approver.ControllerName, ca.CRControllerName} {
		each, err := controller.Known()[name](factory)
		if err != nil {
			return err
		}
		all = append(all, each)
	}
	built.SharedInformerFactory.Start(ctx.Done())
	built.KubeSharedInformerFactory.Start(ctx.Done())
	for _, each := range all {
		group.Go(func() error { return each.Run(2, ctx) })
	}
	return group.Wait()
}
