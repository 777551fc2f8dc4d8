#!/bin/sh
# Users of the etcd are the common names of client certificates: `root`, `isthmus` (the cluster's own processes, which
# write) and `remote` (peers, which read). Safe to run again.
set -u

has() { etcdctl "$1" list | grep -qx "$2"; }

role() { has role "$1" || etcdctl role add "$1"; }

user() { # $1: name and role
	has user "$1" || etcdctl user add "$1" --no-password || exit 1
	etcdctl user grant-role "$1" "$1" || exit 1
}

etcdctl endpoint health || exit 1
role root || exit 1
role isthmus || exit 1
role remote || exit 1
for prefix in cilium/ isthmus/; do
	etcdctl role grant-permission isthmus --prefix=true readwrite "$prefix" || exit 1
	etcdctl role grant-permission remote --prefix=true read "$prefix" || exit 1
done
user root
user isthmus
user remote
etcdctl auth enable
