"""The program: one server and its controllers over one etcd.

``python -m isthmus_lab.apiserver --etcd-servers URL --listen HOST:PORT [--fd N] --token-file F --service-cidr CIDR``
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from isthmus import bounds, logs
from isthmus.bounds import OutOfBounds
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
from isthmus_lab.layout import LONGEST_REQUEST_LINE


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
    parsed = parser.parse_args(arguments)
    host, _, port = parsed.listen.rpartition(":")
    try:
        address = bounds.address(host.strip("[]"))
        number = bounds.count(port, most=bounds.MAX_PORT)
    except OutOfBounds:
        raise UsageError(f"--listen {parsed.listen}: want an address and a port, as in 127.0.0.1:6443") from None
    try:
        cidrs = tuple(map(bounds.network, parsed.service_cidr.split(",")))
    except OutOfBounds as error:
        raise UsageError(f"--service-cidr {parsed.service_cidr}: {error}") from None
    token, root = _content(parsed.token_file, "--token-file"), _content(parsed.root_ca_file, "--root-ca-file")
    tls = _tls(parsed.tls_cert_file, parsed.tls_private_key_file)
    nodes = _node_tls(parsed)
    etcd = tuple(parsed.etcd_servers.split(","))
    etcd_tls = Tls(parsed.etcd_cafile, parsed.etcd_certfile, parsed.etcd_keyfile) if parsed.etcd_cafile else None
    return Options(etcd, etcd_tls, address, number, tuple(parsed.fd), token, cidrs, tls, nodes, root, parsed.log_level)


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


def _node_tls(arguments: argparse.Namespace) -> ssl.SSLContext | None:
    authority, certificate = arguments.kubelet_certificate_authority, arguments.kubelet_client_certificate
    if authority is None:
        return None
    try:
        context = ssl.create_default_context(cafile=authority)
        if certificate is not None:
            context.load_cert_chain(certificate, arguments.kubelet_client_key)
    except (OSError, ssl.SSLError) as error:
        files = f"--kubelet-certificate-authority {authority}, --kubelet-client-certificate {certificate}"
        raise UsageError(f"{files}: no usable certificates and key: {error}") from None
    return context


async def serve(options: Options) -> None:
    """Run until SIGTERM or SIGINT. Requests that come before etcd has been read wait for it."""
    stop, ready = asyncio.Event(), asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    async with Session(options.etcd, tls=options.etcd_tls) as session:
        store = Store(session)
        registry = Registry([*BUILT_IN, *STORED_KINDS])
        api = Api(store, registry, Addresses(options.service_cidrs), root_certificate=options.root_certificate)
        application = Server(api, Nodes(api, tls=options.node_tls), Tokens(options.token), ready=ready).application()
        runner = web.AppRunner(
            application,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=0.2,
            max_line_size=LONGEST_REQUEST_LINE,
        )
        await runner.setup()
        try:
            for site in _sites(runner, options):
                await site.start()
            async with asyncio.TaskGroup() as tasks:
                parts = [
                    store.run(),
                    store.compact(),
                    bootstrap(api, ready, host=options.host, port=options.port),
                    controllers.run(api),
                ]
                running = [tasks.create_task(part) for part in parts]
                await stop.wait()
                for task in running:
                    task.cancel()
        finally:
            await runner.cleanup()


def _sites(runner: web.AppRunner, options: Options) -> list[web.BaseSite]:
    """Sites to listen on: the configured address, and inherited sockets."""
    sites: list[web.BaseSite] = []
    for fd in options.fds:
        try:
            inherited = socket.socket(fileno=fd)
        except OSError as error:
            raise UsageError(f"--fd {fd}: no socket was inherited there: {error.strerror}") from None
        sites.append(web.SockSite(runner, inherited, ssl_context=options.tls))
    return [web.TCPSite(runner, options.host, options.port, ssl_context=options.tls), *sites]


def main(arguments: Sequence[str]) -> int:
    """The program; gives its exit status."""
    try:
        parsed = options(arguments)
        logs.configure(level=parsed.level)
        asyncio.run(serve(parsed))
    except (UsageError, EtcdError, OSError) as error:
        print(f"isthmus_lab.apiserver: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
