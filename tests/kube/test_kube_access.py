"""How a server is reached: kubeconfigs with their certificates, the Pod's service account, and what is refused."""

from __future__ import annotations

import base64
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters.fake_apiserver import running

from isthmus import kube
from isthmus.config import ConfigError, KubernetesSection
from isthmus.kube.access import Access, access
from isthmus.kube.objects.core import NAMESPACE
from isthmus.kube.transport import Transport

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a kubeconfig with one context; its cluster and user are the test's."""

    def write(cluster: dict[str, Any], user: dict[str, Any] | None = None, **more: Any) -> Path:
        config: dict[str, Any] = {
            "current-context": "c1",
            "contexts": [{"name": "c1", "context": {"cluster": "one", "user": "me"}}],
            "clusters": [{"name": "one", "cluster": cluster}],
            "users": [{"name": "me", "user": user or {}}],
            **more,
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    return write


def read(path: Path, *, context: str = "") -> Access:
    return access(KubernetesSection(kubeconfig=str(path), context=context), environment={})


class Authority:
    """A CA and what it signed, as files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")

    def _openssl(self, *arguments: str) -> None:
        keys = ["-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test CA"]
        subprocess.run(["openssl", *arguments, *keys], cwd=self.folder, check=True, capture_output=True)

    def sign(self, name: str, extension: str) -> None:
        new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}"]
        made = subprocess.run(
            ["openssl", *new, "-keyout", f"{name}.key"], cwd=self.folder, check=True, capture_output=True
        )
        (self.folder / "ext").write_text(extension)
        sign = ["x509", "-req", "-CA", "ca.crt", "-CAkey", "ca.key", "-days", "2", "-extfile", "ext"]
        command = ["openssl", *sign, "-out", f"{name}.crt"]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True, input=made.stdout)

    def inline(self, name: str) -> str:
        return base64.b64encode((self.folder / name).read_bytes()).decode()


@pytest.fixture(scope="module")
def openssl_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("ca"))
    made.sign("server", "subjectAltName=IP:127.0.0.1,DNS:api.test")
    made.sign("client", "extendedKeyUsage=clientAuth")
    return made


@pytest.fixture
def tls(openssl_authority: Authority) -> ssl.SSLContext:
    """A server that knows clients by certificates of the CA."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(openssl_authority.folder / "ca.crt"))
    context.load_cert_chain(openssl_authority.folder / "server.crt", openssl_authority.folder / "server.key")
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as an API server, which is a Go program
    return context


async def reach(found: Access) -> None:
    async with kube.Client(Transport(found)) as client:
        await client.list(NAMESPACE)


async def test_a_client_certificate_speaks_for_us(
    openssl_authority: Authority, tls: ssl.SSLContext, write: Write
) -> None:
    tls.verify_mode = ssl.CERT_REQUIRED
    async with running(tls=tls) as server:
        inline = {
            "client-certificate-data": openssl_authority.inline("client.crt"),
            "client-key-data": openssl_authority.inline("client.key"),
        }
        cluster = {"server": server.url, "certificate-authority-data": openssl_authority.inline("ca.crt")}
        await reach(read(write(cluster, inline)))
        files = {
            "client-certificate": str(openssl_authority.folder / "client.crt"),
            "client-key": str(openssl_authority.folder / "client.key"),
        }
        await reach(read(write(cluster | {"certificate-authority": str(openssl_authority.folder / "ca.crt")}, files)))
        with pytest.raises(kube.Unreachable):
            await reach(read(write(cluster)))


async def test_a_server_of_an_unknown_authority_is_not_trusted(tls: ssl.SSLContext, write: Write) -> None:
    async with running(tls=tls) as server:
        with pytest.raises(
            kube.Unreachable, match=r"list namespaces: https://127.0.0.1:\d+: its certificate is not trusted"
        ):
            await reach(read(write({"server": server.url})))
        await reach(read(write({"server": server.url, "insecure-skip-tls-verify": True})))


async def test_the_name_in_the_certificate_may_be_another(
    openssl_authority: Authority, tls: ssl.SSLContext, write: Write
) -> None:
    async with running(tls=tls) as server:
        trusted = {"server": server.url, "certificate-authority-data": openssl_authority.inline("ca.crt")}
        await reach(read(write(trusted | {"tls-server-name": "api.test"})))
        with pytest.raises(kube.Unreachable, match="not trusted"):
            await reach(read(write(trusted | {"tls-server-name": "elsewhere.test"})))


def test_a_token_may_be_inline_or_in_a_file_beside_the_kubeconfig(write: Write, tmp_path: Path) -> None:
    assert read(write({"server": "http://x"}, {"token": "secret"})).bearer() == "secret"
    (tmp_path / "token").write_text("from file\n")
    assert read(write({"server": "http://x"}, {"tokenFile": "token"})).bearer() == "from file"


def test_a_context_may_be_chosen(write: Write) -> None:
    contexts = [{"name": "c1", "context": {"cluster": "one"}}, {"name": "c2", "context": {"cluster": "two"}}]
    clusters = [{"name": n, "cluster": {"server": f"http://{n}"}} for n in ("one", "two")]
    path = write({}, contexts=contexts, clusters=clusters)
    assert read(path).server == "http://one"
    assert read(path, context="c2").server == "http://two"


def test_the_environment_names_a_kubeconfig(write: Write) -> None:
    path = write({"server": "http://x/"})
    assert access(KubernetesSection(), environment={"KUBECONFIG": f"{path}:/other"}).server == "http://x"


def test_a_pod_uses_its_service_account(tmp_path: Path, openssl_authority: Authority) -> None:
    (tmp_path / "ca.crt").write_bytes((openssl_authority.folder / "ca.crt").read_bytes())
    (tmp_path / "token").write_text("of the pod\n")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    found = access(KubernetesSection(), environment=environment, pod=tmp_path)
    assert found.server == "https://[fd00::1]:443"
    assert found.bearer() == "of the pod"


def test_a_pod_with_an_empty_certificate_does_not_trust_the_authorities_of_its_image(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("")
    environment = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    with pytest.raises(ConfigError, match=r"ca\.crt: not a readable CA certificate"):
        access(KubernetesSection(), environment=environment, pod=tmp_path)


def test_comments_in_a_bundle_of_authorities_may_have_any_letters(
    tmp_path: Path, openssl_authority: Authority, write: Write
) -> None:
    bundle = "# Főtanúsítvány\n" + (openssl_authority.folder / "ca.crt").read_text()
    (tmp_path / "ca.crt").write_text(bundle)
    read_by_pod = access(KubernetesSection(), environment={"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, pod=tmp_path)
    for found in (read_by_pod, read(write({"server": "https://x", "certificate-authority": "ca.crt"}))):
        assert found.tls is not None
        assert len(found.tls.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("cluster", "user", "more", "content"),
    [
        ({}, {}, {}, "cluster 'one': 'server' is missing"),
        ({"server": "http://x"}, {}, {"current-context": "c9"}, "contexts: there is no 'c9'"),
        ({"server": "http://x"}, {}, {"current-context": ""}, "current-context: 'current-context' is missing"),
        ({"server": "http://x"}, {}, {"clusters": None}, "clusters: there is no 'one'"),
        ({"server": "http://x"}, {}, {"users": []}, "users: there is no 'me'"),
        ({"server": "http://x"}, {"exec": {"command": "aws"}}, {}, "user 'me': 'exec' is not supported"),
        (
            {"server": "https://x", "certificate-authority-data": "???"},
            {},
            {},
            "'certificate-authority-data' is not base64",
        ),
        (
            {"server": "https://x", "certificate-authority-data": base64.b64encode(b"no PEM").decode()},
            {},
            {},
            "'certificate-authority' is no CA certificate",
        ),
        ({"server": "https://x", "certificate-authority": "gone.crt"}, {}, {}, "certificate-authority cannot be read"),
        (
            {"server": "https://x"},
            {"client-certificate-data": base64.b64encode(b"no PEM").decode()},
            {},
            "client certificate and key do not fit",
        ),
    ],
)
def test_what_is_wrong_is_named_in_one_line(
    write: Write, cluster: dict[str, Any], user: dict[str, Any], more: dict[str, Any], content: str
) -> None:
    path = write(cluster, user, **more)
    with pytest.raises(ConfigError, match=content) as caught:
        read(path)
    assert str(caught.value).startswith(str(path.parent))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "content"), [("- a", "not a kubeconfig"), ("a: [", "not YAML"), (None, "cannot be read")]
)
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str | None, content: str) -> None:
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=f"kubeconfig: {content}"):
        read(path)


def test_neither_kubeconfig_nor_pod_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"kubernetes\.kubeconfig: not set, and this is no Pod"):
        access(KubernetesSection(), environment={})


def test_a_token_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the token cannot be read: No such file"):
        Access(server="http://x", token_file=tmp_path / "token").bearer()
