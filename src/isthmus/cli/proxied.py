"""API servers of kubeconfig contexts, through ``kubectl proxy``, which has the credentials and their plugins.

The proxy listens on a Unix socket in a directory of our own, so that no other user of this machine can use it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from isthmus.cli import completion, output

if TYPE_CHECKING:
    from isthmus import kube

START: Final = 15.0
"""Seconds that kubectl has to begin to serve: a plugin may ask a cloud for credentials first."""
ANSWER: Final = 10.0
"""Seconds that an API server has for its first answer, before anything is done."""
QUIET: Final = 2.0
"""Seconds after which a person learns what is waited for."""

T = TypeVar("T")


kubeconfig_option = click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="The kubeconfig. [default: $KUBECONFIG, kubectl's]"
)


def options(*, multiple: bool = False) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """The options that select the cluster, or clusters."""

    def decorated(command: click.decorators.FC) -> click.decorators.FC:
        context = click.option(
            "--context", "contexts" if multiple else "context", metavar="NAME", multiple=multiple,
            shell_complete=completion.contexts,
            help="The kubeconfig context of the cluster; repeatable. [default: the current one]" if multiple
            else "The kubeconfig context of the cluster. [default: that of isthmus --context, or the current one]",
        )  # fmt: skip
        return context(kubeconfig_option(command))

    return decorated


def kubectl(context: str, kubeconfig: Path | None) -> list[str]:
    """kubectl with the options that select a cluster."""
    chosen = [*(["--kubeconfig", str(kubeconfig)] if kubeconfig else []), *(["--context", context] if context else [])]
    return ["kubectl", *chosen]


async def current(kubeconfig: Path | None) -> str:
    """Name of the current context."""
    command = [*kubectl("", kubeconfig), "config", "current-context"]
    process = await _start(command)
    out, err = await process.communicate()
    if process.returncode:
        raise click.ClickException(
            err.decode(errors="replace").strip().removeprefix("error: ") or "there is no current context"
        )
    return out.decode().strip()


async def view(kubeconfig: Path | None) -> bytes:
    """Return the kubeconfig as JSON, its files merged, without secrets."""
    process = await _start([*kubectl("", kubeconfig), "config", "view", "-o", "json"])
    out, _ = await process.communicate()
    return out


@asynccontextmanager
async def client(context: str, kubeconfig: Path | None = None) -> AsyncIterator[kube.Client]:
    """Yield a client of a context's API server."""
    from isthmus import kube
    from isthmus.kube.access import Access
    from isthmus.kube.transport import Transport

    with tempfile.TemporaryDirectory(prefix="isthmus-") as folder:
        path = Path(folder) / "proxy.sock"
        process = await _start([*kubectl(context, kubeconfig), "proxy", f"--unix-socket={path}"])
        try:
            label = await _label(context, kubeconfig)
            access = Access(server="http://localhost", socket=path, label=label)
            async with kube.Client(Transport(access)) as connected:
                notice = asyncio.get_running_loop().call_later(QUIET, output.note, f"waiting for {label}")
                try:
                    await _serving(process, label)
                    await _answering(connected)
                finally:
                    notice.cancel()
                yield connected
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
            process._transport.close()  # type: ignore[attr-defined]  # closes its pipes before the loop ends


async def _start(command: list[str]) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except FileNotFoundError:
        raise click.ClickException("kubectl is not in PATH: contexts are reached through it") from None


async def _label(context: str, kubeconfig: Path | None) -> str:
    """The cluster as errors call it: context and server."""
    fields = "jsonpath={.current-context} {.clusters[0].cluster.server}"
    process = await _start([*kubectl(context, kubeconfig), "config", "view", "--minify", "-o", fields])
    out, _ = await process.communicate()
    if process.returncode and context:
        raise click.ClickException(f"context {context} is not in the kubeconfig: kubectl config get-contexts")
    name, _, server = out.decode(errors="replace").strip().partition(" ")
    # Without a kubeconfig kubectl uses the ServiceAccount of a pod.
    return output.plain(f"context {name} ({server})") if server else "the current context"


async def _answering(client: kube.Client) -> None:
    """Wait for an answer, whatever it is, so that a server that hangs is found out before anything is done."""
    from isthmus import kube

    try:
        await client.version(seconds=ANSWER)
    except kube.Unreachable:
        raise
    except kube.KubeError:
        return


async def _serving(process: asyncio.subprocess.Process, label: str) -> None:
    """Wait for the line with which the proxy begins to serve."""
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(START):
            if await process.stdout.readline():
                return
            errors = (await process.stderr.read()).decode(errors="replace").strip().splitlines()
    except TimeoutError:
        errors = [f"kubectl proxy does not serve within {START:.0f} s"]
    reason = errors[-1].removeprefix("error: ") if errors else "kubectl proxy ended"
    raise click.ClickException(f"{label}: {reason}")


async def until(check: Callable[[], Awaitable[T]], *, seconds: float, every: float) -> T:
    """Check until nothing is returned, at intervals, for ``seconds`` at most. Returns what the last check returned."""
    now = asyncio.get_running_loop().time
    deadline = now() + seconds
    while True:
        rest = await check()
        if not rest or now() >= deadline:
            return rest
        await asyncio.sleep(every)


def run(act: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a command to its end; an error of an API server becomes one line."""
    from isthmus import kube

    try:
        return asyncio.run(act())
    except kube.KubeError as error:
        raise click.ClickException(str(error)) from None
    except ExceptionGroup as group:  # of requests that were sent at once
        refused, unexpected = group.split(kube.KubeError)
        if refused is None or unexpected is not None:
            raise
        raise click.ClickException(str(_first(refused))) from None


def _first(error: Exception) -> Exception:
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error
