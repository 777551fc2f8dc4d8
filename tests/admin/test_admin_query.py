"""Questions to a process that answers half, hangs in the middle of an answer, or is none of ours."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from isthmus.admin.query import QueryError, Socket

HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
ANSWERS: Final = {
    "half an answer": (HEAD % 99 + b'{"a', False),
    "half an answer, then nothing": (HEAD % 99 + b'{"a', True),
    "no JSON": (HEAD % 2 + b"{x", False),
    "JSON of another kind": (HEAD % 1 + b"7", False),
    "no HTTP": (b"hello\r\n", False),
}
QUESTIONS: Final[dict[str, Callable[[Socket], Any]]] = {
    "status": lambda asked: asked.status(),
    "tables": lambda asked: asked.tables(),
    "table": lambda asked: asked.table("plans"),
    "counters": lambda asked: asked.counters("calls"),
    "feed": lambda asked: list(asked.feed("flows", last=10)),
}


@contextmanager
def answering(path: Path, answer: bytes, *, stays: bool) -> Iterator[None]:
    """Serve one connection on a unix socket with fixed bytes; ``stays``: without an end while the block runs."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        ended = threading.Event()

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(answer)
                if stays:
                    ended.wait(30)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_that_cannot_be_read_is_a_failed_question_with_its_reason(
    tmp_path: Path, answer: str, question: str
) -> None:
    content, stays = ANSWERS[answer]
    path = tmp_path / "agent.sock"
    with answering(path, content, stays=stays), pytest.raises(QueryError, match=str(path)):
        QUESTIONS[question](Socket(path, timeout=0.3))
