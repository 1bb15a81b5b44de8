"""Templates: what stands in a row stays a value, whatever it is."""

from __future__ import annotations

import json
import pickle
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from signoff.templating import (
    Figure,
    JsonTemplate,
    Template,
    TemplateFailed,
    columns_in,
    fill,
    json_text,
    names_in,
    of_row,
    read_values,
    render,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
HOSTILE = TEXT | st.sampled_from(
    ['","admin":true,"x":"', "{{ 7*7 }}", "{% for x in y %}", "\\", '"', "\n\r\t\0", "<script>", "<!channel>"]
)


def values(**columns: Any) -> Any:
    return of_row(read_values(json.dumps({"event_id": "incoming/0", **columns})))


def test_values_look_as_they_do_in_json_and_null_is_no_text() -> None:
    row = of_row(
        read_values('{"n": 12.50, "none": null, "yes": true, "list": [1, 2.50], "big": 12345678901234567890}')
    )
    text = "{{ n }}|{{ none }}|{{ yes }}|{{ list }}|{{ big }}|{{ '%.3f' | format(n) }}|{{ n * 2 }}"
    assert render(text, row) == "12.50||true|[1, 2.50]|12345678901234567890|12.500|25.0"
    assert render("{{ list | map('string') | join('; ') }} {{ list | map('int') }}", row) == "1; 2.50 [1, 2]"


@given(HOSTILE)
def test_what_a_row_holds_is_never_a_template(text: str) -> None:
    assert render("[{{ text }}]", values(text=text)) == f"[{text}]"


@given(HOSTILE)
def test_html_holds_a_value_as_text_and_never_as_markup(text: str) -> None:
    class Reader(HTMLParser):
        tags: list[str] = []  # noqa: RUF012
        data = ""

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            self.tags = [*self.tags, f"{tag} {attrs}"]

        def handle_data(self, data: str) -> None:
            self.data += data

    page = render('<p title="{{ text }}">{{ text }}</p>', values(text=text), "html")
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert len(reader.tags) == 1 and reader.tags[0].startswith("p [('title', ")
    assert text in (reader.data, reader.data.replace("\0", "�")) or "\r" in text or "\0" in text


@given(HOSTILE)
def test_slack_text_holds_no_control_sequence_of_a_row(text: str) -> None:
    made = render("<!here> *{{ text }}*", values(text=text), "slack")
    inner = made.removeprefix("<!here> *").removesuffix("*")
    assert "<" not in inner and ">" not in inner
    assert inner.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") == text


@given(HOSTILE, HOSTILE)
def test_a_structure_is_valid_json_and_has_the_shape_of_the_template(text: str, other: str) -> None:
    structure = {"to": "{{ text }}", "body": "Alarm: {{ other }}!", "list": ["{{ other }}", 1, None]}
    made = json.loads(json_text(fill(structure, values(text=text, other=other))))
    assert made == {"to": text, "body": f"Alarm: {other}!", "list": [other, 1, None]}


def test_single_expression_keeps_the_type_of_its_value() -> None:
    row = values(phone="0049", n=3, price=0.1, none=None, tags={"a": [1]})
    made = {
        "phone": "{{ phone }}",
        "n": "{{- n -}}",
        "minus": "{{ -n }}",
        "none": "{{ none }}",
        "tags": " {{ tags }} ",
        "text": "{{ n }}{{ n }}",
        "price": "{{ price }}",
    }
    assert json.loads(json_text(fill(made, row))) == {
        "phone": "0049",
        "n": 3,
        "minus": -3,
        "none": None,
        "tags": {"a": [1]},
        "text": "33",
        "price": 0.1,
    }


def test_digits_and_numbers_json_does_not_know_survive() -> None:
    row = of_row(read_values('{"d": 12345678901234567890.123456789012345678, "nan": "NaN"}'))
    text = json_text(fill({"d": "{{ d }}", "nan": "{{ nan }}", "inf": "{{ d * 1e308 }}"}, row))
    assert json.loads(text, parse_float=Decimal) == {
        "d": Decimal("12345678901234567890.123456789012345678"),
        "nan": "NaN",
        "inf": "Infinity",
    }
    assert pickle.loads(pickle.dumps(Figure("12.50"))).text == "12.50"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ missing }}", "'missing' is undefined"),
        ("{{ row.missing }}", "missing"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ text.__class__.__mro__ }}", "unsafe"),
        ("{{ row.__init__.__globals__ }}", "unsafe"),
        ("{{ row.update({'a': 1}) }}", "unsafe"),
        ("{{ range(10000000) | list }}", "range"),
        ("{{ text | int + text }}", "unsupported operand"),
        ("{{ '{0.__class__}'.format(text) }}", "unsafe"),
    ],
)
def test_a_template_that_fails_says_why_and_reaches_nothing_but_values(source: str, said: str) -> None:
    for do in (render, fill):
        with pytest.raises(TemplateFailed, match=f"(?i){said}"):
            do(source, values(text="x"))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("a\n{{ b", "line 2 of the template"),
        ("{% for x in y %}", "line 1 of the template"),
        ("{{ text | safe }}", "No filter named 'safe'"),
        ("{{ [1] | random }}", "No filter named 'random'"),
        ("{% autoescape false %}{{ text }}{% endautoescape %}", "autoescape"),
        ("{% include 'x' %}", "include"),
        ("{% extends 'x' %}", "another one"),
        ("{% from 'x' import y %}", "another one"),
    ],
)
def test_a_bad_template_is_an_error_of_the_pipeline_file(source: str, said: str) -> None:
    for adapter in (TypeAdapter[Any](Template), TypeAdapter[Any](JsonTemplate)):
        with pytest.raises(ValidationError, match=said):
            adapter.validate_python(source)
    with pytest.raises(ValidationError, match=said):
        TypeAdapter[Any](JsonTemplate).validate_python({"a": ["x", {"b": source}]})


def test_names_are_those_a_template_takes_from_outside() -> None:
    source = "{% for a_ in rows %}{{ a_.x }}{{ loop.index }}{% endfor %}{% set a = b %}{{ a }}{{ range(3) }}"
    assert names_in({"x": [source, "{{ c }}", 3, None]}) == {"rows", "b", "c"}
    assert columns_in(subject="{{ a }} {{ row['Mixed Case'] }}", text="{{ a }}{{ b }}") == {
        "a": "subject",
        "b": "text",
    }


def test_one_line_makes_a_header_of_any_text() -> None:
    assert render("{{ text | one_line }}", values(text=" a\r\nBcc: x\t\x00y  z")) == "a Bcc: x y z"


def test_a_text_without_end_is_no_text() -> None:
    with pytest.raises(TemplateFailed, match="longer than"):
        render("{% for x in range(99999) %}{{ text }}{% endfor %}", values(text="x" * 200))
