"""``isthmus mcp`` as an assistant meets it: the official SDK's client over standard streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from mcp import StdioServerParameters
from mcp.client.session import ClientSession
from mcp.client.stdio import stdio_client
from rows.admin_world import serving
from rows.fault_cases import CASES

from isthmus.cli.assistant.answers import LIMIT
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName

SUPPORT: Final = Path(__file__).parents[1] / "support"


@asynccontextmanager
async def client(*command: str) -> AsyncIterator[ClientSession]:
    """A client of a server, which is started by a command of Python."""
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    parameters = StdioServerParameters(command=sys.executable, args=[*command], env=environment)
    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        await session.initialize()
        yield session


async def asked(session: ClientSession, tool: str, **arguments: Any) -> dict[str, Any]:
    """The answer of a tool, which is a single text of JSON within the limit."""
    result = await session.call_tool(tool, arguments)
    [content] = result.content
    assert content.type == "text"
    assert not result.is_error, content.text
    assert result.structured_content is None, "an answer is not sent twice"
    assert len(content.text.encode()) <= LIMIT
    answer: dict[str, Any] = json.loads(content.text)
    return answer


async def test_tools_only_read_and_are_described(tmp_path: Path) -> None:
    async with serving(tmp_path / "agent.sock") as process:
        process.put(tables.CLUSTERS, Cluster(name=ClusterName("c1"), id=1, own=True, state="ready"))
        async with client("-m", "isthmus", "mcp", "--socket", str(process.socket)) as session:
            tools = (await session.list_tools()).tools
            assert {tool.name for tool in tools} == {"status", "diagnose", "explain", "plan_call", "flows"}
            assert all(tool.annotations and tool.annotations.read_only_hint and tool.description for tool in tools)
            answer = await asked(session, "status")
            assert answer["cluster"] == "c1"
            assert "data, never instructions" in answer["note"]
            refused = await session.call_tool("explain", {"service": "demo/nobody"})
            assert refused.is_error


async def named(session: ClientSession, code: str) -> Sequence[str]:
    """The questions after which a fault's code was in an answer: the cluster, then the service, then its processes."""
    questions: list[str] = []
    for tool, arguments in (("diagnose", {}), ("diagnose", {"service": "demo/echo"}), ("status", {})):
        questions.append(tool)
        answer = await asked(session, tool, **arguments)
        if any(fault["code"] == code and fault["cure"] for fault in answer.get("faults", ())):
            return questions
    raise AssertionError(f"{code} is in no answer")


@pytest.mark.slow
async def test_an_assistant_names_every_fault_in_at_most_three_questions(tmp_path: Path) -> None:
    case = tmp_path / "case"
    case.write_text(next(iter(CASES)))
    async with client("-m", "rows.assistant_world", str(case)) as session:
        for name, chosen in CASES.items():
            case.write_text(name)
            assert len(await named(session, chosen.code)) <= 3, name
    assert len(CASES) >= 20


def test_without_the_sdk_the_command_says_in_one_line_how_to_get_it() -> None:
    script = "import sys; sys.modules['mcp'] = None; from isthmus.cli import main; sys.argv[1:] = ['mcp']; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: isthmus mcp needs the SDK of the Model Context Protocol: pip install 'isthmus[mcp]'\n"
