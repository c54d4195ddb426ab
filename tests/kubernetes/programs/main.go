// The programs of a Kubernetes cluster in one, which is linked once: it is the one whose name it is called by.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	name := filepath.Base(os.Args[0])
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kubectl":
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err)
		}
	default:
		made, known := map[string]func() *cobra.Command{
			"kube-apiserver":          apiserver.NewAPIServerCommand,
			"kube-controller-manager": controllers.NewControllerManagerCommand,
			"kube-proxy":              proxy.NewProxyCommand,
			"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
			"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
		}[name]
		if !known {
			fmt.Fprintf(os.Stderr, "no program is named %q\n", name)
			os.Exit(2)
		}
		os.Exit(cli.Run(made()))
	}
}
