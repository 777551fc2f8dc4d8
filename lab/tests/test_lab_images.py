"""Stand-ins for images: given on the command line, in a file, or built in."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from peers.etcd_server import free_ports

from isthmus_lab import images
from isthmus_lab.images import Image
from isthmus_lab.own_programs import ON_HOST


def test_a_stand_in_is_given_as_a_command_line() -> None:
    assert images.parse_option("acme/shop=python3 -m http.server '80 '") == (
        "acme/shop",
        Image(("python3", "-m", "http.server", "80 ")),
    )


@pytest.mark.parametrize("text", ["acme/shop", "=x", "acme/shop=", "acme/shop='x"])
def test_a_stand_in_that_is_no_command_is_refused_with_the_flag(text: str) -> None:
    with pytest.raises(ValueError, match="--image"):
        images.parse_option(text)


def test_a_file_has_commands_and_details(tmp_path: Path) -> None:
    file = tmp_path / "images.yaml"
    file.write_text(
        "acme/shop: serve --port 80\nacme/db: {entrypoint: [db], command: [--all], needs: db, package: acme}\n"
    )
    found = images.of_file(file)
    assert found["acme/shop"] == Image(("serve", "--port", "80"))
    assert found["acme/db"] == Image(("db",), ("--all",), "db", "acme")
    assert images.find("docker.io/acme/shop:3", own=found) == found["acme/shop"]


@pytest.mark.parametrize("text", ["[1, 2]", "a: {entrypont: [x]}", "a: [", "a: 3"])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "images.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"images\.yaml: "):
        images.of_file(tmp_path / "images.yaml")


def test_a_missing_program_is_named_with_its_package() -> None:
    assert images.missing("/usr/bin/wget") == "/usr/bin/wget: not on this host: apt-get install wget"
    assert images.missing("acme-cli") == "acme-cli: not on this host"


@contextmanager
def running(image: str, *arguments: str, **environment: str) -> Iterator[int]:
    """An image's stand-in on a free port."""
    [port] = free_ports(1)
    words = [word.format(port=port) for word in arguments]
    command = images.command(images.BUILT_IN[image], None, [*images.BUILT_IN[image].command, *words], own=ON_HOST)
    process = subprocess.Popen(command, env={**os.environ, **environment})
    try:
        _wait(port)
        yield port
    finally:
        process.terminate()
        assert process.wait(60) == 0, "ends on SIGTERM"


def _wait(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return


def get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/x", timeout=60) as answer:
        return str(answer.read().decode())


def test_http_echo_answers_with_its_text() -> None:
    with running("hashicorp/http-echo", "-text=hello world", "-listen=:{port}") as port:
        assert get(port) == "hello world\n"


def test_whoami_shows_the_caller() -> None:
    with running("traefik/whoami", "--port", "{port}") as port:
        page = get(port)
        assert f"Hostname: {socket.gethostname()}" in page
        assert "RemoteAddr: ::ffff:127.0.0.1:" in page


def test_echo_answers_over_http_tcp_and_udp_and_a_silent_caller_blocks_no_other() -> None:
    with running("isthmus/echo", "{port}", POD_NAME="echo-1", CLUSTER_NAME="c1") as port:
        silent = socket.create_connection(("127.0.0.1", port))
        with silent:
            answer = json.loads(get(port))
            assert (answer["cluster"], answer["pod"], answer["caller"], answer["path"]) == (
                "c1",
                "echo-1",
                "127.0.0.1",
                "/x",
            )
            with socket.create_connection(("127.0.0.1", port), 60) as plain:
                plain.sendall(b"hi\n")
                assert json.loads(plain.makefile().readline())["protocol"] == "TCP"
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
                datagram.settimeout(60)
                datagram.sendto(b"hi", ("127.0.0.1", port))
                answer = json.loads(datagram.recv(4096))
                assert answer["caller_port"] == datagram.getsockname()[1]


def test_echo_answers_on_sigterm_whoever_has_connected_and_then_ends() -> None:
    [port] = free_ports(1)
    command = images.command(images.BUILT_IN["isthmus/echo"], None, [str(port)], own=ON_HOST)
    with subprocess.Popen(command) as process, ExitStack() as stack:
        _wait(port)
        process.send_signal(signal.SIGSTOP)  # so that they wait to be accepted when it is to end
        callers = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(20)]
        process.terminate()
        process.send_signal(signal.SIGCONT)
        for caller in callers:
            caller.sendall(b"hi\n")
        assert [json.loads(caller.makefile().readline())["protocol"] for caller in callers] == ["TCP"] * 20
        assert process.wait(60) == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 60)


def test_echo_takes_the_cpu_time_that_a_request_asks_for() -> None:
    with running("isthmus/echo", "{port}") as port:
        for path, at_least in (("/?cpu=30", 0.03), ("/?cpu=no", 0.0)):
            began = time.monotonic()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                assert json.loads(answer.read())["path"] == path
            assert time.monotonic() - began >= at_least


def test_the_client_ends_at_once_on_sigterm() -> None:
    process = subprocess.Popen([*images.BUILT_IN["isthmus/client"].command], start_new_session=True)
    deadline = time.monotonic() + 60
    while not Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text():
        assert time.monotonic() < deadline
    process.terminate()
    assert process.wait(60) == 0
    os.killpg(process.pid, signal.SIGKILL)  # its sleep, which in a pod ends with the PID namespace


def test_a_stand_in_named_with_registry_and_without_tag_is_for_every_tag() -> None:
    own = {"registry.example.com/shop/api": images.Image(command=("true",))}

    assert images.find("registry.example.com/shop/api:1.4.2", own=own) == own["registry.example.com/shop/api"]
