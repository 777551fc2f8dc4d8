"""``isthmus clusters certs``, ``rotate-ca STEP``, ``refresh``, ``invite``, ``join``, ``leave``.

Each is run where the operator's configuration is: it names the own etcd, the folder of keys (that of ``etcd.ca_file``)
and the directory of the peers' files. Secrets go from hand to hand in one token, which is read from stdin or a file and
is never an argument: whoever lists processes would see it.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar
from urllib.parse import urlsplit

import click

from isthmus.cli import output
from isthmus.config import ConfigError, load

if TYPE_CHECKING:
    from isthmus.clusterset import OwnCluster

T = TypeVar("T")

GRPC_LOG = "GRPC_VERBOSITY"
TOKEN_SIZE = 1 << 17
"""Characters of a token that are read, at most: twice what one may have."""

_options = (
    click.option(
        "--config", "file", type=click.Path(path_type=Path), help="The operator's TOML file; ISTHMUS_* overrides it."
    ),
    click.option("--set", "flags", multiple=True, metavar="SECTION.FIELD=VALUE", help="Set one field; repeatable."),
)
_advertise = click.option(
    "--advertise",
    multiple=True,
    metavar="URL",
    help="Where the other cluster reaches our etcd. [default: our gateways, else as we do]",
)


def of_a_cluster(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a cluster, and turn gRPC's own log off."""

    @wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        import_quiet_grpc()
        return function(*args, **kwargs)

    for option in reversed(_options):
        command = option(command)
    return command


def import_quiet_grpc() -> None:
    """Import gRPC without its log: an error of a connection is reported once, by us.

    gRPC reads the variable when it is imported. It is set for no longer than that: what this process starts, such as
    tests do, logs as it does by itself.
    """
    before = os.environ.get(GRPC_LOG)
    os.environ.setdefault(GRPC_LOG, "NONE")
    try:
        importlib.import_module("grpc")
    finally:
        if before is None:
            del os.environ[GRPC_LOG]


@click.command()
@of_a_cluster
@click.option("--host", "hosts", multiple=True, help="An address or name of the etcd beside those in etcd.endpoints.")
@click.option("--days", default=365, show_default=True, type=click.IntRange(1), help="Life of certificates.")
@click.option("--renew", is_flag=True, help="Renew certificates that are still good.")
@click.option("--client", "clients", multiple=True, metavar="CLUSTER", help="Also one for a peer that brings no token.")
def certs(
    file: Path | None, flags: tuple[str, ...], hosts: tuple[str, ...], days: int, renew: bool, clients: tuple[str, ...]
) -> None:
    """Make the cluster's authority, certificates, and the users and roles of its etcd. May be run again.

    Example: isthmus clusters certs --config c1/operator.toml --host isthmus-etcd.isthmus-system.svc
    """
    home = own_cluster(file, flags)
    with _errors():
        made = home.folder.ensure(home.name, _hosts(home, hosts), days=days, renew=renew, domain=home.domain)
        for client in clients:
            made.append(_client(home, client, days))
    output.note(f"{home.folder.path}: {'made ' + ', '.join(made) if made else 'everything is there'}")
    _guard(home)


def rotate_by_hand(step: str, file: Path | None, flags: tuple[str, ...], hosts: tuple[str, ...], days: int) -> None:
    """Carry out one step of a rotation in the folder of keys."""
    import_quiet_grpc()
    from isthmus.clusterset import joining

    home = own_cluster(file, flags)
    with _errors():
        match step:
            case "begin":
                home.folder.begin_rotation(home.name)
            case "switch":
                if home.folder.waiting:
                    _run(joining.check_next(home))
                home.folder.switch()
                home.folder.ensure(home.name, _hosts(home, hosts), days=days, renew=True, domain=home.domain)
            case "end":
                home.folder.end_rotation()
    _guard(home)
    if step != "switch":
        output.note(
            "if the etcd asks clients for certificates, restart it now: it does not read --trusted-ca-file again"
        )
    output.note("now on every peer: isthmus clusters refresh")


@click.command()
@of_a_cluster
def refresh(file: Path | None, flags: tuple[str, ...]) -> None:
    """Trust the authorities that the peers publish now.

    Example: isthmus clusters refresh --config c1/operator.toml
    """
    from isthmus.clusterset import joining

    changed = _run(joining.refresh(own_cluster(file, flags)))
    print(f"new authorities of: {', '.join(changed)}" if changed else "nothing has changed")


@click.command()
@of_a_cluster
@_advertise
@click.option("--expires", default=3600, show_default=True, type=click.IntRange(10, 86400), metavar="SECONDS")
def invite(file: Path | None, flags: tuple[str, ...], advertise: tuple[str, ...], expires: int) -> None:
    """Print a token that lets one other cluster join, and wait until it has.

    Example: isthmus clusters invite --config c1/operator.toml --advertise https://192.0.2.1:2379
    """
    from isthmus.clusterset import joining

    home = own_cluster(file, flags)

    async def wait() -> str:
        async with joining.invitation(home, lifetime=expires, advertise=advertise) as invitation:
            print(invitation.word, flush=True)
            output.note(
                f"in the other cluster, within {expires} s: isthmus clusters join, and this token on its stdin; waiting"
            )
            return await invitation.accepted()

    name = _run(wait())
    output.note(f"cluster {name} has joined: isthmus clusters status")


@click.command()
@click.argument("token", required=False, metavar="")
@click.option("--token-file", type=click.File("r"), default="-", help="Where the token is.  [default: stdin]")
@of_a_cluster
@_advertise
@click.option("--wait", default=60.0, show_default=True, metavar="SECONDS", help="For the other cluster's answer.")
def join(
    token: str | None,
    token_file: TextIO,
    file: Path | None,
    flags: tuple[str, ...],
    advertise: tuple[str, ...],
    wait: float,
) -> None:
    """Join the cluster whose `isthmus clusters invite` printed the token that is read from stdin.

    Example: isthmus clusters join --token-file token --config c2/operator.toml --advertise https://192.0.2.2:2379
    """
    from isthmus.clusterset import joining

    home = own_cluster(file, flags)
    if token not in (None, "-"):
        reason = "whoever lists processes (ps) reads a token that is an argument"
        raise click.ClickException(f"{reason}: give it on stdin or with --token-file, and invite again")
    name = _run(joining.join(home, _read_token(token_file), advertise=advertise, patience=wait))
    output.note(f"joined cluster {name}: isthmus clusters status")


@click.command()
@click.argument("name")
@of_a_cluster
def leave(name: str, file: Path | None, flags: tuple[str, ...]) -> None:
    """Stop following the cluster NAME, and take its access to this one away.

    Example: isthmus clusters leave c2 --config c1/operator.toml
    """
    from isthmus.clusterset import joining
    from isthmus.model.names import ClusterName

    home = own_cluster(file, flags)
    _run(joining.leave(home, ClusterName(name)))
    output.note(f"parted from cluster {name}; there: isthmus clusters leave {home.name}")


def _read_token(file: TextIO) -> str:
    if file.isatty():
        output.note("paste the token, then Ctrl-D:")
    return file.read(TOKEN_SIZE)


def own_cluster(file: Path | None, flags: tuple[str, ...]) -> OwnCluster:
    """The own cluster as its operator is configured; one line names what is missing."""
    from isthmus.clusterset import Folder, OwnCluster

    try:
        config = load(file, environment=os.environ, flags=flags)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    needed = {
        "cluster.name": config.cluster.name,
        "cluster.id": config.cluster.id,
        "etcd.endpoints": config.etcd.endpoints,
        "etcd.ca_file": config.etcd.ca_file,
        "clusterset.directory": config.clusterset.directory,
    }
    if empty := [field for field, value in needed.items() if not value]:
        raise click.ClickException(f"not configured: {', '.join(empty)}; set them in --config or with --set")
    folder = Folder(Path(config.etcd.ca_file).parent)
    return OwnCluster(
        cluster=config.cluster,
        clusterset=config.clusterset,
        etcd=config.etcd,
        folder=folder,
        domain=config.gateway.domain,
    )


def _hosts(home: OwnCluster, more: Iterable[str]) -> list[str]:
    """Host names and addresses that the server's certificate must cover."""
    named = [urlsplit(each).hostname or "" for each in home.etcd.endpoints]
    return [*dict.fromkeys([*filter(None, named), *more, "localhost", "127.0.0.1"])]


def _client(home: OwnCluster, name: str, days: int) -> str:
    from isthmus.clusterset import remote_user
    from isthmus.model.names import ClusterName

    user = remote_user(ClusterName(name))
    home.folder.client(user, days=days)
    return user


def _guard(home: OwnCluster) -> None:
    """Users and roles where the etcd answers; else how to start it."""
    from isthmus.clusterset import joining
    from isthmus.etcd import Denied
    from isthmus.reflector import Transient

    path = home.folder.path
    try:
        _run(joining.guard(home), passing=(Transient,))
    except Denied as error:
        raise click.ClickException(f"{error}: is {path}/root.password the password of its user root?") from None
    except Transient as error:
        flags = f"--cert-file {path}/server.crt --key-file {path}/server.key"
        raise click.ClickException(
            f"{error}\nno users made: "
            "this etcd is open to whoever reaches it until this was run again while it answers."
            f"\nStart it so, then again: etcd … {flags} --client-cert-auth --trusted-ca-file {path}/ca.crt"
        ) from None
    output.note("etcd: users root, operator, mirror and local are there, and nobody else is let in")


def _run(work: Coroutine[Any, Any, T], *, passing: tuple[type[Exception], ...] = ()) -> T:
    """Its result; what can go wrong is one line."""
    from isthmus import logs
    from isthmus.clusterset import JoinError, PkiError
    from isthmus.etcd import EtcdError
    from isthmus.reflector import Expired, Transient

    logs.configure(level="error", form="text")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as by ^C: what was begun is taken back
    try:
        return asyncio.run(work)
    except passing:
        raise
    except (JoinError, PkiError, EtcdError, Transient, Expired, OSError) as error:
        raise click.ClickException(str(error)) from None


@contextmanager
def _errors() -> Iterator[None]:
    """One line for what can go wrong with the folder of keys."""
    from isthmus.clusterset import PkiError

    try:
        yield
    except (PkiError, OSError) as error:
        raise click.ClickException(str(error)) from None
