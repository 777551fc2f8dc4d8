"""Families of a lab's clusters, and what this kernel lacks for them."""

from __future__ import annotations

import errno
import socket

import pytest

from isthmus.model.services import Family
from isthmus_lab import families, startup
from isthmus_lab.families import BadFamilies
from isthmus_lab.layout import Lab


def test_one_word_is_of_all_clusters_and_one_with_a_name_of_that_cluster() -> None:
    assert families.parse_all([], 2) == (("IPv4",), ("IPv4",))
    assert families.parse_all(["IPv6,IPv4"], 2) == (("IPv6", "IPv4"), ("IPv6", "IPv4"))
    assert families.parse_all(["IPv4,IPv6", "c2=IPv6"], 3) == (("IPv4", "IPv6"), ("IPv6",), ("IPv4", "IPv6"))


@pytest.mark.parametrize("word", ["", "IPv5", "ipv4", "IPv4,IPv4", "IPv4,IPv6,IPv4", "c1=IPv9"])
def test_what_is_no_family_is_refused_with_what_there_is(word: str) -> None:
    with pytest.raises(BadFamilies, match=r"--ip-families .*: want IPv4, IPv6, IPv4,IPv6 or IPv6,IPv4"):
        families.parse_all([word], 2)


def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(BadFamilies, match="--ip-families c3=IPv6: there is no cluster c3: c1 to c2"):
        families.parse_all(["c3=IPv6"], 2)


def test_machines_have_every_family_of_the_lab_and_the_rest_those_of_its_cluster() -> None:
    lab = Lab("demo", 2, families=(("IPv4",), ("IPv6", "IPv4")))
    one, two = lab.clusters
    assert [scheme.family for scheme in lab.schemes] == ["IPv4", "IPv6"]
    assert one.addresses == ("172.30.1.2",)
    assert two.addresses == ("fd00:172:30:2::2", "172.30.2.2")
    assert two.etcd == "https://[fd00:172:30:2::2]:2379"
    assert two.nodes[0].pod(7) == ("fd00:10:2:1::7", "10.2.1.7")
    assert two.nodes[0].pod_cidrs == ("fd00:10:2:1::/64", "10.2.1.0/24")


def test_a_kernel_without_a_family_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(family: socket.AddressFamily) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return socket.socket(family)

    def there(family: Family) -> bool:
        return families_usable(family, make=refuse)

    families_usable = families.usable
    assert [there(family) for family in families.SCHEMES] == [True, False]
    monkeypatch.setattr(families, "usable", there)
    with pytest.raises(startup.CannotStart) as refused:
        startup.check(Lab("demo", families=(("IPv4", "IPv6"),)))
    assert str(refused.value) == "--ip-families: this kernel has no IPv6; was it booted with ipv6.disable=1?"
