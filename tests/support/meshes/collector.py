"""A real collector of OpenTelemetry: it receives spans by OTLP over gRPC and writes them to a file."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from machine import programs
from peers.etcd_server import free_ports

CONFIGURATION: Final = """
receivers: {{otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{file: {{path: "{file}", flush_interval: 100ms}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{traces: {{receivers: [otlp], exporters: [file]}}}}
"""


class Span(NamedTuple):
    """A span as a collector wrote it."""

    resource: dict[str, str]
    name: str
    kind: int
    """2 of a server, 3 of a client."""
    trace: str
    id: str
    parent: str
    tags: dict[str, str]
    text: str
    """All of it, as JSON."""


class Collector(NamedTuple):
    """A running collector."""

    port: int
    file: Path

    def batches(self) -> list[list[Span]]:
        """The spans of each request that it received."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        with suppress(json.JSONDecodeError):  # it may be writing the last line
            return [_spans(json.loads(line)) for line in lines]
        return [_spans(json.loads(line)) for line in lines[:-1]]

    def spans(self) -> list[Span]:
        """All spans so far."""
        return [span for batch in self.batches() for span in batch]

    async def until(self, count: int, trace: str) -> list[Span]:
        """Wait for so many spans of a trace."""
        async with asyncio.timeout(60):
            while len(found := [span for span in self.spans() if span.trace == trace]) < count:  # noqa: ASYNC110 a file
                await asyncio.sleep(0.05)
        return found


def _spans(line: dict[str, Any]) -> list[Span]:
    return [
        Span(
            resource=_tags(of["resource"]["attributes"]),
            name=span["name"],
            kind=span["kind"],
            trace=span["traceId"],
            id=span["spanId"],
            parent=span.get("parentSpanId", ""),
            tags=_tags(span.get("attributes", ())),
            text=json.dumps(span),
        )
        for of in line["resourceSpans"]
        for scope in of["scopeSpans"]
        for span in scope["spans"]
    ]


def _tags(attributes: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {each["key"]: str(next(iter(each["value"].values()), "")) for each in attributes}


@asynccontextmanager
async def collector(directory: Path) -> AsyncIterator[Collector]:
    """A collector that accepts connections; ended with the block."""
    [port] = free_ports(1)
    made = Collector(port, directory / "spans.json")
    configuration = directory / "collector.yaml"
    configuration.write_text(CONFIGURATION.format(port=port, file=made.file))
    program = programs.path("otlp-collector")
    process = await asyncio.create_subprocess_exec(
        program, "--config", f"file:{configuration}", env=os.environ | {"GOMAXPROCS": "1"}
    )
    try:
        async with asyncio.timeout(60):
            while not await _accepts(port):
                assert process.returncode is None, f"the collector ended with {process.returncode}"
                await asyncio.sleep(0.05)
        yield made
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
