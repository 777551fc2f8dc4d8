"""The program: one server and its controllers over one etcd.

``python -m isthmus_lab.apiserver --etcd-servers URL --listen HOST:PORT [--fd N] --token-file F --service-cidr CIDR``
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from isthmus import logs
from isthmus.etcd import EtcdError, Session, Tls
from isthmus_lab import controllers
from isthmus_lab.apiserver.addresses import Addresses, Network
from isthmus_lab.apiserver.api import Api
from isthmus_lab.apiserver.bootstrap import bootstrap
from isthmus_lab.apiserver.http import Server
from isthmus_lab.apiserver.kinds import BUILT_IN, Registry
from isthmus_lab.apiserver.nodes import Nodes
from isthmus_lab.apiserver.storage import Store
from isthmus_lab.apiserver.stored_kinds import STORED_KINDS
from isthmus_lab.apiserver.tokens import Tokens


class Options(NamedTuple):
    """The options of the command line."""

    etcd: tuple[str, ...]
    etcd_tls: Tls | None
    host: str
    port: int
    fds: tuple[int, ...]
    token: str
    service_cidrs: tuple[Network, ...]
    tls: ssl.SSLContext | None
    node_tls: ssl.SSLContext | None
    root_certificate: str
    level: str


class UsageError(Exception):
    """The command line cannot be used; the message names the flag."""


def options(arguments: Sequence[str]) -> Options:
    """The command line, parsed; a UsageError names the option at fault."""
    parser = argparse.ArgumentParser(prog="isthmus_lab.apiserver", description=__doc__)
    parser.add_argument("--etcd-servers", required=True, help="URLs of the cluster's etcd, joined by commas")
    parser.add_argument("--etcd-cafile", default="", help="who vouches for the etcd")
    parser.add_argument("--etcd-certfile", default="", help="what is shown to it")
    parser.add_argument("--etcd-keyfile", default="", help="its key")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--fd", type=int, action="append", default=[], help="an inherited listening socket")
    parser.add_argument("--token-file", type=Path, help="what clients must carry as bearer token; none: all may")
    parser.add_argument("--service-cidr", default="10.96.0.0/16", help="where ClusterIPs come from, joined by commas")
    parser.add_argument("--tls-cert-file", type=Path, help="certificate to serve with; none: plain http")
    parser.add_argument("--tls-private-key-file", type=Path, help="its key")
    parser.add_argument("--kubelet-certificate-authority", type=Path, help="who vouches for nodes; none: plain http")
    parser.add_argument("--kubelet-client-certificate", type=Path, help="what is shown to nodes")
    parser.add_argument("--kubelet-client-key", type=Path, help="its key")
    parser.add_argument("--root-ca-file", type=Path, help="what pods trust this server by (kube-root-ca.crt)")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    given = parser.parse_args(arguments)
    host, _, port = given.listen.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        number = int(port)
    except ValueError:
        raise UsageError(f"--listen {given.listen}: want an address and a port, as in 127.0.0.1:6443") from None
    try:
        cidrs = tuple(ipaddress.ip_network(cidr) for cidr in given.service_cidr.split(","))
    except ValueError as error:
        raise UsageError(f"--service-cidr {given.service_cidr}: {error}") from None
    token, root = _content(given.token_file, "--token-file"), _content(given.root_ca_file, "--root-ca-file")
    tls = _tls(given.tls_cert_file, given.tls_private_key_file)
    nodes = _node_tls(given)
    etcd = tuple(given.etcd_servers.split(","))
    etcd_tls = Tls(given.etcd_cafile, given.etcd_certfile, given.etcd_keyfile) if given.etcd_cafile else None
    return Options(
        etcd, etcd_tls, str(address), number, tuple(given.fd), token, cidrs, tls, nodes, root, given.log_level
    )


def _content(path: Path | None, flag: str) -> str:
    try:
        return path.read_text().strip() if path else ""
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}") from None


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--tls-cert-file {certificate}: no usable certificate and key: {error}") from None
    return context


def _node_tls(given: argparse.Namespace) -> ssl.SSLContext | None:
    authority, certificate = given.kubelet_certificate_authority, given.kubelet_client_certificate
    if authority is None:
        return None
    try:
        context = ssl.create_default_context(cafile=authority)
        if certificate is not None:
            context.load_cert_chain(certificate, given.kubelet_client_key)
    except (OSError, ssl.SSLError) as error:
        files = f"--kubelet-certificate-authority {authority}, --kubelet-client-certificate {certificate}"
        raise UsageError(f"{files}: no usable certificates and key: {error}") from None
    return context


async def serve(given: Options) -> None:
    """Run until SIGTERM or SIGINT. Requests that come before etcd has been read wait for it."""
    stop, ready = asyncio.Event(), asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    async with Session(given.etcd, tls=given.etcd_tls) as session:
        store = Store(session)
        registry = Registry([*BUILT_IN, *STORED_KINDS])
        api = Api(store, registry, Addresses(given.service_cidrs), root_certificate=given.root_certificate)
        application = Server(api, Nodes(api, tls=given.node_tls), Tokens(given.token), ready=ready).application()
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
        await runner.setup()
        try:
            for site in _sites(runner, given):
                await site.start()
            async with asyncio.TaskGroup() as tasks:
                parts = [
                    store.run(),
                    store.compact(),
                    bootstrap(api, ready, host=given.host, port=given.port),
                    controllers.run(api),
                ]
                running = [tasks.create_task(part) for part in parts]
                await stop.wait()
                for task in running:
                    task.cancel()
        finally:
            await runner.cleanup()


def _sites(runner: web.AppRunner, given: Options) -> list[web.BaseSite]:
    """Where to listen: the address, and sockets that were opened elsewhere."""
    sites: list[web.BaseSite] = []
    for fd in given.fds:
        try:
            inherited = socket.socket(fileno=fd)
        except OSError as error:
            raise UsageError(f"--fd {fd}: no socket was inherited there: {error.strerror}") from None
        sites.append(web.SockSite(runner, inherited, ssl_context=given.tls))
    return [web.TCPSite(runner, given.host, given.port, ssl_context=given.tls), *sites]


def main(arguments: Sequence[str]) -> int:
    """The program; gives its exit status."""
    try:
        given = options(arguments)
        logs.configure(level=given.level)
        asyncio.run(serve(given))
    except (UsageError, EtcdError, OSError) as error:
        print(f"isthmus_lab.apiserver: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
