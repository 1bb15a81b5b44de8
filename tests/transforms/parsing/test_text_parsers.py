"""Grok patterns, the matching of several patterns, and pairs of keys and values; without Spark."""

from __future__ import annotations

import re
import time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pyspark.sql.types import StructType

from signoff.transforms.contract import FieldError
from signoff.transforms.parsing.grok import PATTERNS, GrokError, expanded
from signoff.transforms.parsing.parse_json import DescribeJson
from signoff.transforms.parsing.parse_key_value import ParseKeyValueConfig, _Pairs
from signoff.transforms.parsing.parse_regex import Matcher, ParseRegexConfig, _groups


def matched(pattern: str, *texts: str) -> list[dict[str, str] | None]:
    regex, _ = expanded(pattern, {})
    names = tuple(_groups(regex))
    rows = Matcher((regex,), names)(pa.array(texts)).to_pylist()
    return [
        None if row["matched"] is None else {n: row[f"g{at}"] for at, n in enumerate(names)} for row in rows
    ]


@pytest.mark.parametrize("name", PATTERNS)
def test_every_grok_pattern_is_one_that_re2_takes(name: str) -> None:
    regex, _ = expanded(f"%{{{name}}}(?P<rest>.*)", {})
    assert "rest" in _groups(regex)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("IP", "203.0.113.7"),
        ("IP", "2001:db8::ff00:42:8329"),
        ("IP", "::1"),
        ("HOSTNAME", "web-1.example.org"),
        ("UUID", "123e4567-e89b-12d3-a456-426614174000"),
        ("TIMESTAMP_ISO8601", "2026-11-18T13:03:12.123Z"),
        ("TIMESTAMP_ISO8601", "2026-11-18 13:03:12+0100"),
        ("HTTPDATE", "18/Nov/2026:14:03:12 +0100"),
        ("SYSLOGTIMESTAMP", "Nov  8 14:03:12"),
        ("NUMBER", "-1.5e3"),
        ("QUOTEDSTRING", '"a \\" b"'),
        ("URI", "https://anna@example.org:8443/a/b?c=d"),
        ("MAC", "0a:1b:2c:3d:4e:5f"),
        ("EMAILADDRESS", "anna.b+c@mail.example.org"),
        ("LOGLEVEL", "Warning"),
    ],
)
def test_a_grok_pattern_matches_all_of_its_text(pattern: str, text: str) -> None:
    assert matched(f"^%{{{pattern}:it}}$", text) == [{"it": text}]


def test_a_line_of_nginx_and_one_of_syslog_are_taken_apart() -> None:
    line = '203.0.113.7 - - [18/Nov/2026:14:03:12 +0100] "-" 400 - "-" ""'
    (found,) = matched("^%{COMBINEDLOG}$", line)
    assert found is not None
    assert (found["client"], found["raw_request"], found["status"], found["bytes"]) == (
        "203.0.113.7",
        "-",
        "400",
        "",
    )
    (found,) = matched("^%{SYSLOGLINE}$", "Nov 18 14:03:12 web1 sshd[411]: Accepted key")
    assert found is not None and (found["program"], found["pid"], found["message"]) == (
        "sshd",
        "411",
        "Accepted key",
    )


def test_own_definitions_go_first_and_types_are_kept() -> None:
    regex, types = expanded("%{NUMBER:n:int} %{WORD:w}", {"WORD": "[a-z]{3}"})
    assert types == {"n": "INT"} and re.search(r"\(\?P<w>\[a-z\]\{3\}\)", regex)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("%{NOPE:x}", "there is no pattern NOPE"),
        ("%{WORD:a-b}", "is not followed by a name"),
        ("%{LOOP:x}", "name each other without end"),
        (r"(?P<a>x)(?=y)", "not a pattern"),
        (r"(?P<a>x)\1", "not a pattern"),
        ("no group", "not a pattern"),
        ("(?P<a>x", "not a pattern"),
        ("%{IP:client}|%{HOSTNAME:client}", 'two groups are called "client"'),
    ],
)
def test_a_pattern_that_is_none_is_refused_with_the_reason(pattern: str, said: str) -> None:
    config = ParseRegexConfig(
        type="parse_regex", input="a", patterns=pattern, definitions={"LOOP": "%{LOOP}"}
    )
    with pytest.raises(FieldError, match=said):
        config._matcher()
    with pytest.raises(GrokError):
        expanded("%{NOPE}", {})


def test_no_line_takes_longer_than_in_proportion_to_its_length() -> None:
    """A pattern on which an engine that goes back would be busy until the end of time."""
    began = time.monotonic()
    assert matched(r"^(?P<a>(?:x+x+)+)y$", "x" * 5_000) == [None]
    assert time.monotonic() - began < 10


PAIRS = _Pairs(" ", "=", '"', "error")


@pytest.mark.parametrize(
    ("pairs", "text", "found"),
    [
        (PAIRS, "a=1  b=\t c=x=y", {"a": "1", "b": "", "c": "x=y"}),
        (PAIRS, 'a="x y" b="" c="\\"q\\" \\\\"', {"a": "x y", "b": "", "c": '"q" \\'}),
        (PAIRS, r'a="C:\new\temp" b="\\n"', {"a": r"C:\new\temp", "b": r"\n"}),
        (_Pairs(",", " ", '"', "error"), 'a   1 , b  "x, y" ', {"a": "1", "b": "x, y"}),
        (_Pairs(",", " = ", '"', "error"), "a  =  1 , b = 2", {"a": "1", "b": "2"}),
        (_Pairs(";", ":", None, "last"), "a : 1; b:2 ;a:3", {"a": "3", "b": "2"}),
        (_Pairs(", ", "->", "'", "first"), "a->1, b->'x, y', a->2", {"a": "1", "b": "x, y"}),
    ],
)
def test_pairs_are_what_stands_between_the_separators(
    pairs: _Pairs, text: str, found: dict[str, str]
) -> None:
    assert dict(pairs(text)["pairs"]) == found


@pytest.mark.parametrize("text", ["", "  ", "word", "a=1 word", "=x", 'a="open', 'a="x"y', "a=1 a=2"])
def test_a_text_with_anything_that_is_no_pair_is_an_error(text: str) -> None:
    said = PAIRS(text)
    assert said["pairs"] is None and said["error"]


@pytest.mark.parametrize("text", ['k= "a, b=1', 'k=\t"a", l= "b', "a=1, b", 'k= "a"x'])
def test_a_blank_in_front_of_a_quote_opens_it_all_the_same(text: str) -> None:
    said = _Pairs(",", "=", '"', "error")(text)
    assert said["pairs"] is None and said["error"]


@pytest.mark.parametrize("text", ["a{}b", 'a={}"b', 'a="x"{}b', 'a="{}', "a=1,{}b"])
def test_blanks_take_time_in_proportion_to_their_number(text: str) -> None:
    began = time.monotonic()
    _Pairs(",", "=", '"', "error")(text.format(" " * 100_000))
    assert time.monotonic() - began < 5


@given(st.dictionaries(st.text("abc", min_size=1), st.text(), min_size=1, max_size=5))
def test_pairs_that_were_written_with_quotes_are_read_as_they_were(pairs: dict[str, str]) -> None:
    quoted = {key: value.replace("\\", "\\\\").replace('"', '\\"') for key, value in pairs.items()}
    assert dict(PAIRS(" ".join(f'{k}="{v}"' for k, v in quoted.items()))["pairs"]) == pairs


@given(st.text())
def test_any_text_has_pairs_or_a_reason(text: str) -> None:
    said = PAIRS(text)
    assert (said["pairs"] is None) == bool(said["error"])


@pytest.mark.parametrize("fields", [{}, {"into": "a", "key_separator": " "}, {"into": "a", "quote": "="}])
def test_pairs_that_go_nowhere_or_cannot_be_told_apart_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ParseKeyValueConfig.model_validate({"type": "parse_key_value", "input": "a", **fields})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": "\x01"}', "not valid JSON: Invalid control character at character 7"),
        ('{"a": "b', "not valid JSON: Unterminated string at character 6"),
        ("{", "not valid JSON: Expecting property name enclosed in double quotes at character 1"),
    ],
)
def test_a_reason_about_json_is_a_sentence(text: str, reason: str) -> None:
    assert DescribeJson(StructType(), None)(text) == reason
