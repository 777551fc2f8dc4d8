"""What a user can get wrong in the configuration is one line that names the field."""

from __future__ import annotations

import pytest

from isthmus.config import DatapathSection, DnsSection
from isthmus.datapath import Datapath, DatapathError


@pytest.mark.parametrize(
    ("section", "dns", "message"),
    [
        ({}, {}, r"datapath\.cgroup is empty: name the cgroup of this node's pods"),
        ({"cgroup": "/"}, {"cluster_dns": ("10.96.0",)}, r"dns\.cluster_dns = '10\.96\.0': want an address"),
        ({"cgroup": "/"}, {"cluster_dns": ("10.96.0.10:x",)}, r"dns\.cluster_dns = '10\.96\.0\.10:x'"),
        ({"cgroup": "/"}, {"cluster_dns": ("10.96.0.10:70000",)}, r"dns\.cluster_dns"),
        ({"cgroup": "/"}, {"cluster_dns": ("10.96.0.10",), "listen": ("nowhere:53",)}, r"dns\.listen = 'nowhere:53'"),
        (
            {"cgroup": "/"},
            {"cluster_dns": ("fd00::10",)},
            r"dns\.listen has no IPv6 address, which .* has: \[fd00::10\]:53",
        ),
        ({"cgroup": "/"}, {"cluster_dns": ("10.96.0.10", "10.96.0.11")}, r"dns\.cluster_dns has two IPv4 addresses"),
        ({"cgroup": "/", "exempt": ("/nowhere",)}, {}, r"datapath\.exempt /nowhere: No such file"),
    ],
)
def test_a_wrong_field_is_named(section: dict[str, str], dns: dict[str, str], message: str) -> None:
    with pytest.raises(DatapathError, match=message):
        Datapath.open(DatapathSection(**section), DnsSection(**dns))  # type: ignore[arg-type]
