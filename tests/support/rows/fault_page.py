"""docs/faults.md: every fault of rows/fault_cases.py as `diagnose` prints it, and those that other commands find.

PYTHONPATH=tests/support python -m rows.fault_page     writes the page
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import structs
from rows.fault_cases import CASES, faults

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs" / "faults.md"
LAB: Final = "lab/tests/test_lab_diagnose.py::test_the_hop_and_the_object_of_a_fault_are_named"
GREEN: Final = "tests/processes/test_green_while_broken.py"
MACHINE: Final = "tests/admin/test_machine.py"
REFUSES: Final = "test_an_api_server_that_refuses_lists_is_diagnosed_by_its_status"
HUNG: Final = "lab/tests/test_lab_islands_etcd.py"
SECOND: Final = "tests/datapath/test_placement.py"
STALLED: Final = "tests/datapath/test_stalled.py"

REAL: Final[dict[str, str]] = {
    "agent ended": f"{LAB}[caller's agent down]",
    "operator ended": f"{LAB}[caller's operator down]",
    "name server ended": f"{LAB}[caller's name server down]",
    "API server away": f"{LAB}[caller's API server down]",
    "own etcd away": f"{LAB}[caller's etcd down]",
    "exporter's operator ended": f"{LAB}[exporter's operator down]",
    "exporter's API server away": f"{LAB}[exporter's API server down]",
    "exporter's etcd away": f"{LAB}[exporter's etcd down]",
    "peer unreachable": f"{LAB}[cluster cut off]",
    "pod outside the hooked cgroup": f"{LAB}[pod outside the hooked control group]",
    "pod of another node": f"{LAB}[pod of another node]",
    "typo": f"{LAB}[typo]",
    "never exported": f"{LAB}[never exported]",
    "export without a Service": f"{LAB}[export without Service]",
    "exports conflict": f"{LAB}[conflict of ports]",
    "namespace missing": f"{LAB}[namespace missing]",
    "no pod": f"{LAB}[no pod]",
    "target port missing": f"{LAB}[target port of no container]",
    "API server hangs": f"{GREEN}::test_an_agent_whose_api_server_hangs_shows_that",
    "API server throttles": f"{GREEN}::{REFUSES}",
    "API server fails": f"{GREEN}::{REFUSES}",
    "right missing": f"{GREEN}::{REFUSES}",
    "definition missing": f"{GREEN}::{REFUSES}",
    "token expired": f"{GREEN}::test_an_operator_whose_token_is_refused_shows_that_it_can_never_lead",
    "operator without a lease": f"{GREEN}::test_an_operator_whose_role_binding_is_gone_shows_that_it_can_never_lead",
    "clock of a node differs from the API server's": f"{GREEN}::test_a_clock_that_is_off_by_days_is_named",
    "own certificate about to end":
        f"{GREEN}::test_an_own_client_certificate_that_ends_tomorrow_is_a_problem_before_it_ends",
    "record refused by a peer": "tests/clusterset/test_clusterset_status.py::test_a_refused_record_is_named",
    "cache of peers cannot be written": f"{GREEN}::test_a_full_state_disk_is_a_problem_of_the_agent",
    "disk full": f"{MACHINE}::test_a_file_system_is_measured_once_and_a_missing_directory_not_at_all",
    "descriptors nearly used up": f"{MACHINE}::test_open_descriptors_are_counted_against_the_limit_of_the_process",
    "local ports exhausted":
        f"{MACHINE}::test_ports_that_are_all_taken_by_calls_of_one_destination_are_counted_with_it",
    "asymmetric route": f"{MACHINE}::test_packets_whose_way_back_is_another_are_counted",
    "denial on the path":
        "tests/datapath/test_denials.py::"
        "test_the_agent_has_a_row_for_who_is_denied_what_until_five_minutes_after_the_last",
    "path MTU: large calls vanish": f"{LAB}[large packets vanish]",
    "path MTU: large answers vanish":
        f"{STALLED}::test_an_answer_whose_large_segments_vanish_is_listed_where_it_is_sent",
    "established connections stall":
        f"{STALLED}::test_a_path_that_loses_everything_is_not_told_by_the_size",
    "two agents on a node": f"{SECOND}::test_a_second_agent_with_maps_of_its_own_on_the_same_cgroup_is_noticed_by_both",
    "second cgroup": f"{SECOND}::test_a_pod_in_a_second_cgroup_is_named_while_others_are_below_the_hooked_one",
    "wrong cgroup": f"{SECOND}::test_a_pod_below_the_cgroup_is_found_by_its_address_and_one_elsewhere_is_not",
    "export not published: etcd full":
        "tests/keeping/test_full_etcd.py::"
        "test_an_export_that_does_not_fit_into_the_etcd_has_why_until_the_etcd_is_cured",
    "Envoy of the node hung":
        "lab/tests/test_lab_routes.py::"
        "test_while_an_envoy_hangs_calls_go_to_the_services_own_backends_and_it_is_named",
    "process hung":
        f"{HUNG}::test_a_hung_agent_of_another_node_and_a_hung_gateway_are_named_in_a_diagnosis_of_the_cluster",
    "gateway silent":
        "lab/tests/test_lab_islands_etcd.py::"
        "test_an_island_whose_gateways_are_cut_off_is_stale_and_diagnose_names_them",
    "two implementations of the MCS API":
        "tests/mcs/test_operator_edits.py::"
        "test_somebody_who_undoes_every_write_of_ours_costs_a_bounded_number_and_loses_in_the_end",
}  # fmt: skip
"""Tests in which the fault itself is injected, by its name: in a lab, a namespace, a process or a file system."""


class Elsewhere(NamedTuple):
    """A fault that no rows of a process show: the command that finds it, what it prints, what mends it, its test."""

    fault: str
    command: str
    prints: str
    cure: str
    test: str


CHECKS: Final = "tests/installation/test_checks.py"
ELSEWHERE: Final = (
    Elsewhere(
        "path MTU, before a call meets it",
        "isthmus verify, isthmus check",
        "… no answer to 9000 bytes; 1300 bytes pass",
        "MTU of the links between the clusters",
        "tests/cli/test_verify_sizes.py::test_a_bottleneck_without_icmp_fails_and_the_size_that_passes_is_named",
    ),
    Elsewhere(
        "pods of two clusters of one network do not reach each other",
        "isthmus check",
        "✗ packets to c2: …",
        "a route between the pods' ranges, or islands",
        f"{CHECKS}::test_packets_that_do_not_pass_are_a_fault_unless_the_clusters_are_islands",
    ),
    Elsewhere(
        "another implementation of the MCS API that is installed",
        "isthmus check, isthmus install",
        "✗ plan: … implements the MCS API here: both would write the same ServiceImports",
        "remove one of the two",
        "tests/installation/test_plan.py::test_what_makes_an_installation_useless_is_a_blocker",
    ),
    Elsewhere(
        "definitions of the MCS API of another owner",
        "isthmus check",
        "✗ plan: the definitions … are taken over",
        "isthmus install",
        f"{CHECKS}::test_what_speaks_against_a_plan_is_a_fault_and_what_is_odd_a_warning",
    ),
    Elsewhere(
        "clock of a node",
        "isthmus check",
        "✗ clocks: n1: ahead of the API server by up to 90 s",
        "run a time service on the nodes",
        f"{CHECKS}::test_clocks_are_compared_with_that_of_the_api_server",
    ),
    Elsewhere(
        "name server's address is missing on a node",
        "isthmus check",
        "✗ name server's address: n1: no 169.254.7.53 on lo",
        "kubectl -n isthmus-system rollout restart daemonset/isthmus-agent",
        f"{CHECKS}::test_a_node_without_the_name_servers_address_is_named",
    ),
    Elsewhere(
        "rights of a ServiceAccount",
        "isthmus check",
        "✗ rights: isthmus-agent lacks 1 of 20: …",
        "isthmus install",
        f"{CHECKS}::test_the_rights_of_each_account_are_those_of_its_roles",
    ),
)
"""Faults that need packets, pods or rights of their own to be seen, which `diagnose` does not use."""

INTRODUCTION: Final = """# Faults

<!-- Written by: PYTHONPATH=tests/support python -m rows.fault_page -->

`isthmus diagnose demo/echo` walks the path of a call, and `isthmus diagnose` checks the cluster
([how](troubleshooting.md)). Each fault has a code, which stays when its sentence changes: `-o json` has it as `code`.
The table shows c1, which calls `demo/echo` of c2, as `isthmus --context c1 diagnose` prints it where c2's processes can
be asked too; in a lab, processes are started by `isthmus lab start`.

Each row is injected in `tests/cli/test_cli_faults.py` beside a healthy twin, the case that looks most like it and is no
fault: the last value before a threshold, a source that was away, the second of two servers. The last column names tests
that cause the fault itself in running processes. Faults with `†` are found without a service: `isthmus diagnose`.
"""


def page() -> str:
    """The page as it should be."""
    rows = [*_rows()]
    return "\n".join(
        (
            INTRODUCTION,
            *_table(("fault", "code", "what it prints", "what mends it, or shows more", "also injected in"), rows),
            "",
            "## Found by other commands",
            "",
            "These need packets, pods or rights of their own, which `diagnose` does not use.",
            "",
            *_table(
                ("fault", "command", "what it prints", "what mends it", "test"),
                ((each.fault, *map(_code, each[1:3]), each.cure, _test(each.test)) for each in ELSEWHERE),
            ),
            "",
            "## Not told apart",
            "",
            *(f"- {line}" for line in NOT_TOLD_APART),
            "",
        )
    )


NOT_TOLD_APART: Final = (
    "A CNI that masquerades pods' packets to other clusters breaks only what depends on the pod's address, such as a "
    "NetworkPolicy of the exporter by `ipBlock`: no process sees the address that arrives. It shows as "
    "`backend-silent` or `one-pod-denied`.",
    "A NetworkPolicy of the caller (egress) and one of the exporter (ingress) drop the same packets: both show as "
    "`one-pod-denied`, or as `backend-silent` where the agent is denied too. `kubectl get networkpolicies` on either "
    "side has them.",
    "A path that loses large packets and one that is cut between a small request and a large one, until the next small "
    "request: `path-mtu`. A path that lost nothing before, and then everything: `path-stalls`.",
    "A cache or a stub domain of CoreDNS for the clusterset's zone answers only pods that ask another server than "
    "`dns.cluster_dns`; if they do, that is reported, as `cluster-dns-wrong` or `node-dns-cache`.",
    "A hung gateway and a firewall before it: `gateway-silent` of both; where its process can be asked, "
    "`process-hung`.",
)
"""Faults that look alike from where `diagnose` looks."""


def _rows() -> Iterator[tuple[str, ...]]:
    for name, case in CASES.items():
        it = case.world()
        case.inject(it)
        [fault] = faults(structs.replace(it.facts(), lab="", context="c1"), whole=case.whole)
        real = _test(REAL[name]) if name in REAL else ""
        prints = f"✗ {fault.hop}  {fault.object}: {fault.text}"
        yield f"{name}{' †' if case.whole else ''}", f"`{fault.code}`", _code(prints), _code(fault.cure), real


def _code(text: str) -> str:
    """Text as code: of its own back quotes none are left."""
    return f"`{text.replace('`', chr(39))}`"


def _test(name: str) -> str:
    """A test by its file and, of several with a parameter, that."""
    file, _, test = name.partition("::")
    parameter = test.partition("[")[2]
    return f"`{Path(file).stem}`" + (f": {parameter.rstrip(']')}" if parameter else "")


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield "|---" * len(header) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


if __name__ == "__main__":
    PAGE.write_text(page())
