"""What passing the accounts of pods to gateways costs a new connection, by the number of a node's pods.

    make bench-accounts                             # CALLS=400

An Envoy of one worker on loopback answers each connection at once, with the filter configuration that a node has for an
island (isthmus.gateway.accounts), or without it. A caller that is none of the pods connects: each account is compared.
In turn, in every round; p10 and p50 are those of all rounds.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from peers.etcd_server import free_ports

from isthmus.gateway import accounts
from isthmus.model.names import ClusterName
from isthmus.model.services import Pod
from isthmus.proxy import binary
from isthmus.proxy.delta import MESSAGES
from isthmus.proxy.messages import ANY_PREFIX, message, unpacked

CALLS: Final = int(os.environ.get("CALLS", "400"))
ROUNDS: Final = 8
SIZES: Final = ((0, 0), (10, 1), (50, 2), (110, 1), (250, 1))
"""Accounts of a node, and the addresses of each."""
NETWORK: Final = "envoy.extensions.filters.network"


def pods(count: int, addresses: int) -> list[Pod]:
    return [
        Pod(name=f"demo/{n}", uid=f"{n}", addresses=tuple(f"10.{k}.{n // 250}.{n % 250 + 1}" for k in range(addresses)),
            service_account=f"account-{n}")
        for n in range(count)
    ]  # fmt: skip


def bootstrap(port: int, count: int, addresses: int) -> dict[str, Any]:
    answer = {"@type": f"{ANY_PREFIX}{NETWORK}.direct_response.v3.Config", "response": {"inline_string": "x"}}
    filters: list[dict[str, Any]] = [{"name": "answer", "typed_config": answer}]
    if count:
        row = accounts.config(ClusterName("c2"), "island c2", "c1.clusterset.local", pods(count, addresses))
        config: Any = unpacked(message(MESSAGES["extension"]).FromString(row.body).typed_config)
        for value in config.on_new_connection:
            value.format_string.ClearField("formatters")  # this Envoy has them, and json cannot name their type
        typed = {"@type": f"{ANY_PREFIX}{accounts.FILTER_STATE}"}
        filters.insert(0, {"name": "accounts", "typed_config": typed | MessageToDict(config)})
    at = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    listener = {"name": "calls", "address": at, "filter_chains": [{"filters": filters}]}
    return {"node": {"id": "bench", "cluster": "bench"}, "static_resources": {"listeners": [listener]}}


def connected(port: int) -> float:
    """Microseconds of a connection, up to its answer."""
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as caller:
        caller.recv(1)
    return (time.perf_counter() - began) * 1e6


def main() -> None:
    program, ports, envoys = binary.find(), free_ports(len(SIZES)), []
    with tempfile.TemporaryDirectory() as folder:
        for number, (port, size) in enumerate(zip(ports, SIZES, strict=True)):
            file = Path(folder, f"{number}.json")
            file.write_text(json.dumps(bootstrap(port, *size)))
            command = [str(program), "-c", str(file), "--concurrency", "1", "--use-dynamic-base-id", "-l", "error"]
            envoys.append(subprocess.Popen(command))
        try:
            time.sleep(5)
            taken: dict[int, list[float]] = {port: [] for port in ports}
            for _ in range(ROUNDS):
                for port in ports:
                    taken[port] += [connected(port) for _ in range(CALLS // ROUNDS)]
        finally:
            for each in envoys:
                each.kill()
                each.wait()
    print(f"| accounts | addresses of each | p10 µs | p50 µs |  load {os.getloadavg()[0]:.1f}\n|---|---|---|---|")
    for port, (count, addresses) in zip(ports, SIZES, strict=True):
        times = sorted(taken[port])
        print(f"| {count} | {addresses} | {times[len(times) // 10]:.0f} | {times[len(times) // 2]:.0f} |")


if __name__ == "__main__":
    main()
