"""Expressions of routes: what Envoy's RE2 would refuse is refused here, since it would keep back a Service's routes."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from meshes.route_expressions import TAKEN

from isthmus import expressions

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
    ")": "no expression",
    "a**": "no expression",
    "a{2}{3}": "no expression",
    "a{3,2}": "no expression",
    "*a": "no expression",
    "^*": "no expression",
    "{2}a": "no expression",
    "(?i){2}": "no expression",
    "(|{1,3})": "no expression",
    "[b-a]": "no expression",
    "[\\d-z]": "no expression",
    "[a": "no expression",
    "\\": "no expression",
    "\\x4": "no expression",
    "\\pL": "no expression",
    "(?)": "no expression",
    "(?P<n": "no expression",
    "a{" + "9" * 1000 + "}": "repeats more than 1000 times",
    "(" * 60 + ")" * 60: "more than 50 groups",
    "a" * 1025: "more than 1024 characters",
    "(?i)" + "[\x00-\uffff]" * 200: "too large an expression",
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


ALPHABET = st.text(st.sampled_from("ab(?:)[^]{}012,*+?|\\.-$ sSdw\n"), max_size=12)
VALUES = st.text(st.sampled_from("abAB01 .-\n"), max_size=8)


@given(ALPHABET, st.lists(VALUES, max_size=5))
@example("(a|ab)(c|bcd)?(a*)*", ["abab"])
@example("(a?){3}a{3}", ["aaa"])
@example("^(?:a$|b)*", ["a"])
def test_what_is_taken_matches_what_pythons_engine_matches(text: str, values: list[str]) -> None:
    if expressions.problem(text) or "{," in text:  # {,2} is text to RE2, and a repetition to Python
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pattern = re.compile(text.replace("$", r"\Z"), re.ASCII)
    for value in values:
        found = pattern.fullmatch(value) is not None
        if r"\s" not in text.lower() or "\v" not in value:
            assert expressions.matches(text, value) == found, (text, value)


@pytest.mark.parametrize(
    ("text", "value", "matched"),
    [
        ("(?i)/API/[a-z]+", "/api/Xy", True),
        ("/(?i:api)/x", "/API/X", False),
        ("/(?i)a(?-i:b)c", "/AbC", True),
        ("(?i)[^a]", "A", False),
        ("(?s).", "\n", True),
        (".", "\n", False),
        ("(?m)a$\nb", "a\nb", True),
        ("a$\nb", "a\nb", False),
        ("[[:alpha:][:^digit:]]", "_", True),
        ("[[:digit:]]{2}", "42", True),
        ("[]a]+", "a]", True),
        ("[a-]+", "-a", True),
        ("\\x41\\012?", "A\n", True),
        (r"\bfoo\b-\Bx?", "foo-", True),
        (r"foo\bbar", "foobar", False),
        (r"foo\b-x", "foo-x", True),
        (r"\d+", "٣", False),
        ("{a{,2}", "{a{,2}", True),
        ("a||b", "", True),
        ("é+", "éé", True),
        ("(?P<n>a){3}", "aaa", True),
    ],
)
def test_an_expression_matches_as_re2_has_it(text: str, value: str, matched: bool) -> None:
    assert expressions.problem(text) == ""
    assert expressions.matches(text, value) is matched


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_literal_matches_its_text_alone(text: str, other: str) -> None:
    assert expressions.matches(expressions.literal(text), text)
    assert expressions.matches(expressions.literal(text), other) == (text == other)


def test_an_expression_that_backtracks_for_ever_elsewhere_is_matched_in_one_pass() -> None:
    assert not expressions.matches("/(a|a)*(a|a)*(a|a)*(a|a)*c", "/" + "a" * 2000)
