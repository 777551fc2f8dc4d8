"""Clusters on one machine: network namespaces, real etcd, a small API server, nodes that run pods as processes."""
