"""Where connects can be moved, as status has it."""

from __future__ import annotations

from isthmus.datapath.core.tc import PodLinksStats
from isthmus.model import tables
from isthmus.model.services import Node, Pod
from isthmus.processes.agent import AgentStatus
from isthmus.processes.rescuing import sentence, without_programs
from isthmus.statedb import Database

LINKS = PodLinksStats(2, "tcx", {})


def shown(links: PodLinksStats = LINKS, *pods: tuple[str, str, str], setting: str = "auto") -> str:
    """``pods``: name, address, phase."""
    db = Database(tables.NODES, tables.PODS)
    with db.write() as txn:
        txn.put(tables.NODES, Node("n1", addresses=("172.30.0.1", "fd00:30::1")))
        txn.put(tables.NODES, Node("n2", addresses=("172.30.0.2",)))
        for name, address, phase in pods:
            txn.put(tables.PODS, Pod(name=name, uid=name, addresses=(address,), phase=phase))
    return sentence(setting, links, db.snapshot(), node="n1")


def test_it_is_on_where_pods_interfaces_have_the_programs() -> None:
    assert shown(LINKS, ("demo/client", "10.1.1.2", "Running")) == "on 2 interfaces of pods (tcx)"


def test_an_interface_without_the_programs_is_named_with_why() -> None:
    assert shown(PodLinksStats(1, "clsact", {"veth7": "no such qdisc"})) == (
        "on 1 interfaces of pods (clsact); not on veth7: no such qdisc"
    )


def test_links_without_the_programs_are_a_line_of_their_own_in_status() -> None:
    """Names are not answered there, either: it is in the summary, where counters are not."""
    assert without_programs(LINKS) == ""
    failed = {f"veth{n}": "no such qdisc" for n in range(7)}
    assert without_programs(PodLinksStats(1, "clsact", failed)) == (
        f"{', '.join(f'veth{n} (no such qdisc)' for n in range(5))} and 2 more"
    )
    assert {"unattached_links", "callers"} <= set(AgentStatus.__struct_fields__)


def test_pods_of_the_nodes_own_network_are_named_and_those_that_ended_are_not() -> None:
    pods = [
        ("kube-system/proxy", "172.30.0.1", "Running"),
        ("kube-system/six", "fd00:30::1", "Running"),
        ("kube-system/job", "172.30.0.1", "Succeeded"),
        ("kube-system/other", "172.30.0.2", "Running"),
    ]
    assert shown(LINKS, *pods).endswith("; not for pods of the node's own network: kube-system/proxy, kube-system/six")


def test_of_many_the_rest_is_a_number() -> None:
    pods = [(f"demo/p{n}", "172.30.0.1", "Running") for n in range(7)]
    assert shown(LINKS, *pods).endswith("demo/p0, demo/p1, demo/p2, demo/p3, demo/p4 and 2 more")


def test_off_is_off_by_the_setting() -> None:
    assert shown(setting="off") == "off (datapath.rescue)"
