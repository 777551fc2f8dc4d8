"""The real API server in a lab: kube-apiserver and kube-controller-manager instead of the small server.

Everything else of a lab is as it was: the node runs the pods, etcd keeps the objects. Nothing here is a stand-in for
what those two programs do; only the scheduler is ours, since one node needs no more than a binding.

    found.py        where the programs are
    files.py        what they are configured with: keys, certificates, tokens
    processes.py    which processes stand for the small server
    foreign.py      kube-proxy and CoreDNS in the stead of our datapath
    relay.py        host loopback → API server: kube-apiserver cannot inherit a listening socket
    scheduler.py    binds pods to nodes
    definitions.py  the CustomResourceDefinitions that the small server has built in
"""
