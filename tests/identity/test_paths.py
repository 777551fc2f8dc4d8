"""Judgement of the path to another cluster by the answer to a probe."""

from __future__ import annotations

import errno

import pytest
from datapath_worlds.signed_syn import PLAIN, option, segment

from isthmus.identity.paths import Answer, judge

PROOF = option(bytes(16), 7, 65_800, "10.1.0.1", 40_000, "10.2.0.1", 80, 1)
SIGNED = segment("10.1.0.1", 40_000, "10.2.0.1", 80, 1, options=PLAIN + PROOF)
WITHOUT = segment("10.1.0.1", 40_000, "10.2.0.1", 80, 1)
NOPS = segment("10.1.0.1", 40_000, "10.2.0.1", 80, 1, options=PLAIN + 16 * b"\1")


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (Answer(), "ok"),
        (Answer(errno.EHOSTUNREACH, (3, 13), SIGNED), "ok"),
        (Answer(errno.EACCES, (1, 1), SIGNED), "ok"),
        (Answer(errno.EHOSTUNREACH, (3, 10), WITHOUT), "stripped"),
        (Answer(errno.EACCES, (1, 5), NOPS), "stripped"),
        (Answer(errno.EHOSTUNREACH, (3, 13), WITHOUT), "stripped"),
        (Answer(errno.EHOSTUNREACH, (3, 10), SIGNED), "rewritten"),
        (Answer(errno.EACCES, (1, 5), SIGNED), "rewritten"),
        (Answer(errno.ETIMEDOUT), "silent"),
        (Answer(errno.ECONNREFUSED), ""),
        (Answer(errno.EHOSTUNREACH, (3, 1), SIGNED), ""),
        (Answer(errno.EHOSTUNREACH), ""),
        (Answer(errno.EHOSTUNREACH, (3, 10), SIGNED[:20]), ""),
        (Answer(errno.EHOSTUNREACH, (3, 10), SIGNED[:12] + b"\0" + SIGNED[13:]), ""),
    ],
)
def test_an_answer_is_judged_by_its_code_and_by_the_syn_that_it_quotes(answer: Answer, state: str) -> None:
    verdict = judge(answer)
    assert (verdict.state if verdict else "") == state
