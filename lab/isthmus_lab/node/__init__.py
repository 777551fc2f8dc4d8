"""A node: what a kubelet, a container runtime and kube-proxy are on a real one, as one small process.

It sees its cluster only through the Kubernetes API, so it works with any API server. Pods are processes of the host in
namespaces and a control group of their own, over a private copy-on-write view of the host's file system.
"""
