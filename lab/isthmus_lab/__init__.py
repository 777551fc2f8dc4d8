"""Clusters on one machine: network namespaces, real etcd, a small API server, nodes that run pods as processes.

What belongs here: everything that stands in for machines, wires, a container runtime and an image registry. What never
does: anything Isthmus's own processes need on a real cluster. Nothing of a lab touches the host's network namespace,
and everything of it carries the lab's name, so that ``down`` finds it all after any crash.

    layout.py      names, addresses and paths of a lab: pure
    kernel.py      the system calls Python lacks
    privileges.py  what this user may do here, and what follows from it
    confinement.py the user namespace of a lab that is not root's
    cgroups.py     the lab's tree of control groups
    network/       namespaces and wires
    beside.py      work in the background of a block of code
    spawn.py       a process in its namespaces and cgroup
    images.py      image name → program of the host
    node/          a process per node: pods, probes, plain Services
    clusterdns/    cluster.local, in the control plane's namespace
    supervisor/    the one process that starts, watches and restarts all others of a lab
    removal.py     takes a lab away, whatever state it is in
    faults.py      kills, pauses, cuts and slows parts of a lab
    apiserver/, controllers/   a small API server and its controllers
    realapi/       kube-apiserver and its like in its place
    demo/          the demo
    cli/           ``isthmus lab``
"""
