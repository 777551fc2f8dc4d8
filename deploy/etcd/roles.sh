#!/bin/sh
# Who may do what in the etcd; users are the common names of client certificates, or come with a password. Safe to run
# again. The rights are those of isthmus.clusterset.rights (a test compares them):
#   writer    the operator and the mirror        user operator
#   local     agents behind a mirror             user local
#   remote    other clusters                     user remote, or one user per cluster (isthmus clusters invite)
set -u
: "${ISTHMUS_CLUSTER_NAME:?}"

role() { etcdctl role list | grep -qx "$1" || etcdctl role add "$1" || exit 1; }
may() { etcdctl role grant-permission "$1" "$2" "$3" || exit 1; }
below() { etcdctl role grant-permission --prefix=true "$1" "$2" "$3" || exit 1; }
user() { # $1: user, $2: role
	etcdctl user list | grep -qx "$1" || etcdctl user add "$1" --no-password || exit 1
	etcdctl user grant-role "$1" "$2" || exit 1
}

etcdctl endpoint health || exit 1

role remote
may remote read cilium/.heartbeat
below remote read cilium/state/
below remote read "cilium/synced/$ISTHMUS_CLUSTER_NAME/"
may remote read "cilium/cluster-config/$ISTHMUS_CLUSTER_NAME"
may remote read "isthmus/clusters/v1/$ISTHMUS_CLUSTER_NAME"
may remote read "isthmus/trust/v1/$ISTHMUS_CLUSTER_NAME"

role local
may local read cilium/.heartbeat
below local read cilium/cache/
below local read cilium/synced/
below local read cilium/cluster-config/
below local read isthmus/clusters/v1/

role writer
below writer readwrite cilium/
below writer readwrite isthmus/clusters/v1/
may writer readwrite isthmus/mirror

role root
user root root
user operator writer
user local local
user remote remote
etcdctl auth enable
