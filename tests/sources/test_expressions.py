"""Expressions of routes: what Envoy's RE2 would refuse is refused here, since it would keep back a Service's routes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from route_expressions import TAKEN

from isthmus.sources import expressions

REFUSED = {
    "(x{500}){500}": "repeats more than 1000 times",
    "x{1001}": "repeats more than 1000 times",
    "(((a?){10}){10}){11}": "repeats more than 1000 times",
    "(((a?){10}){10}){8}": "too large an expression: about 4176 instructions, more than 1000",
    ".{200}": "too large",
    "(a)\\1": "no expression",
    "(?=a)": "no expression",
    "(?#c)a": "no expression",
    "(?x)a": "no expression",
    "(?a)a": "no expression",
    "a++": "no expression",
    "a\\Z": "no expression",
    "\\_": "no expression",
    "\\u00e9": "no expression",
    "\\é": "no expression",
    "a[\\b]": "no expression",
    "(?i-x:a)": "no expression",
    "[[:foo:]]": "no expression",
    "(?P<é>a)": "no expression",
    "(": "no expression",
}


@pytest.mark.parametrize("text", TAKEN)
def test_what_envoy_takes_is_taken(text: str) -> None:
    assert expressions.problem(text) == ""


@pytest.mark.parametrize(("text", "why"), REFUSED.items())
def test_what_envoy_would_refuse_is_refused_with_the_reason(text: str, why: str) -> None:
    assert why in expressions.problem(text)


@given(st.text(st.sampled_from("ab(?:)[^]{}0123456789,*+?|\\.é"), max_size=60))
def test_no_text_raises(text: str) -> None:
    expressions.problem(text)
