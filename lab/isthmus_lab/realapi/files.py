"""Configuration files of kube-apiserver and kube-controller-manager, of mode 0600 in the cluster's directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from isthmus.clusterset import certificates
from isthmus_lab.layout import Cluster

PEOPLE: Final = "system:masters"
"""The group of the one token that people and the lab's own parts come with."""

COREFILE: Final = """\
.:53 {{
    bind {address}
    errors
    kubernetes cluster.local clusterset.local in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        multicluster clusterset.local
        ttl 5
    }}
}}
"""
"""CoreDNS's, where it stands for our name servers and the lab's: nothing is forwarded, as nothing leaves the lab."""


def write(cluster: Cluster, *, trusted: certificates.Pair, token: str) -> None:
    """Keys of service accounts, the authority, the certificate for calls to nodes, and who has which token."""
    accounts = certificates.authority("service accounts")
    private(signing_key(cluster), accounts.key.decode())
    private(checking_key(cluster), accounts.certificate.decode())
    private(authority(cluster), trusted.certificate.decode())
    private(tokens(cluster), f'{token},lab,lab,"{PEOPLE}"\n')
    private(
        corefile(cluster),
        COREFILE.format(address=" ".join(cluster.addresses), kubeconfig=cluster.directory / "kubeconfig"),
    )
    kubelet = certificates.issue(trusted, "kube-apiserver-kubelet-client")
    private(kubelet_certificate(cluster), kubelet.certificate.decode())
    private(kubelet_key(cluster), kubelet.key.decode())


def corefile(cluster: Cluster) -> Path:
    """CoreDNS's configuration."""
    return cluster.directory / "Corefile"


def signing_key(cluster: Cluster) -> Path:
    """Signs the tokens of service accounts."""
    return cluster.directory / "service-accounts.key"


def checking_key(cluster: Cluster) -> Path:
    """The public half, in a certificate, since that is a form in which the API server takes it."""
    return cluster.directory / "service-accounts.crt"


def authority(cluster: Cluster) -> Path:
    """Vouches for the API server: pods get it as ``ca.crt``."""
    return cluster.directory / "ca.crt"


def tokens(cluster: Cluster) -> Path:
    """File of accepted bearer tokens."""
    return cluster.directory / "tokens.csv"


def kubelet_certificate(cluster: Cluster) -> Path:
    """Client certificate of the API server for the kubelet API."""
    return cluster.directory / "kubelet-client.crt"


def kubelet_key(cluster: Cluster) -> Path:
    """The key of that."""
    return cluster.directory / "kubelet-client.key"


def private(path: Path, content: str) -> None:
    """Write a file that only root can read."""
    path.touch(mode=0o600)
    path.write_text(content)
