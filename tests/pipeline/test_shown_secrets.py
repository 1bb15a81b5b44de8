"""No secret that stands in a pipeline file is printed: not by `signoff config`, not by an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from signoff.catalog import default
from signoff.cli import app
from signoff.errors import PipelineError
from signoff.pipeline.load import load
from signoff.pipeline.overlays import Layers
from signoff.pipeline.syntax import parse

BASE = "name: p\nstate: ./state\nsources: {s: {type: files, path: './in/*.jsonl'}}\n"


def printed(tmp_path: Path, text: str, **environ: str) -> str:
    file = tmp_path / "p.yaml"
    file.write_text(BASE + text)
    done = CliRunner().invoke(app, ["config", str(file)], env=environ)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def hook(tmp_path: Path, fields: str, **environ: str) -> dict[str, Any]:
    given = {"url": "http://h/x"} | yaml.safe_load(fields)
    text = printed(
        tmp_path, yaml.safe_dump({"sinks": {"o": {"type": "http", "input": "s", **given}}}), **environ
    )
    assert "secret" not in text and "hunter" not in text, text
    found: dict[str, Any] = yaml.safe_load(text)["sinks"]["o"]
    return found


def test_of_a_secret_field_only_the_references_are_printed(tmp_path: Path) -> None:
    headers = (
        '{A: plainsecret, B: "one-secret-${REGION}", C: "two-secret$${x}tail", D: "Bearer ${T}", E: "$${T}"}'
    )
    found = hook(tmp_path, f"{{headers: {headers}, token: '${{T:-hunter3}}'}}", REGION="eu", T="t0ken")
    shown = {"A": "***", "B": "***${REGION}", "C": "***", "D": "***${T}", "E": "***"}
    assert (found["headers"], found["token"]) == (shown, "${T:-***}")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:${PW}@${HOST}/d", "https://u:${PW}@${HOST}/d"),
        ("https://u:hunter${PW}2@${HOST}/d", "https://u:***${PW}***@${HOST}/d"),
        ("https://u:hunter$${PW}@h/d", "https://u:***@h/d"),
        ("https://hunter2@h/d?token=${T}&key=hunter4&n=1", "https://***@h/d?token=${T}&key=***&n=1"),
        ("${URL}", "${URL}"),
        ("http://h/$$x/${A:-b}", "http://h/$$x/${A:-b}"),
    ],
)
def test_of_an_address_the_password_is_masked_but_for_its_references(
    tmp_path: Path, url: str, shown: str
) -> None:
    assert hook(tmp_path, f"url: '{url}'", HOST="h", PW="pw", T="t", URL="http://h/")["url"] == shown


def test_a_secret_that_is_written_a_second_time_is_masked_there_too(tmp_path: Path) -> None:
    fields = '{headers: {A: "hunter-2-hunter$$${R}"}, transient_statuses: [500]}'
    text = printed(tmp_path, "transforms: {f: {type: filter, input: s, where: \"x = 'hunter-2-hunter$$'\"}}\n"
                   + yaml.safe_dump({"sinks": {"o": {"type": "http", "input": "f", "url": "http://h",
                                                     **yaml.safe_load(fields)}}}), R="eu")  # fmt: skip
    assert "hunter-2" not in text
    assert yaml.safe_load(text)["sinks"]["o"]["transient_statuses"] == [500]


def test_what_config_prints_is_read_back_as_the_same(tmp_path: Path) -> None:
    texts = [
        "1e3",
        "0o17",
        "no",
        "12:30",
        "1_000",
        "~",
        "0x1F",
        ".5",
        "+1",
        "1e3x",
        "",
        "null",
        "<<",
        "=",
        "007",
    ]
    step = {"type": "parse_csv", "input": "s", "schema": "a STRING", "null_values": texts}
    text = printed(
        tmp_path,
        json.dumps({"c": step}).join(["transforms: ", "\n"]) + "sinks: {o: {type: console, input: c}}\n",
    )
    assert parse(text).value["transforms"]["c"]["null_values"] == texts
    assert yaml.safe_load(text)["transforms"]["c"]["null_values"] == texts
    assert "'1e3'" in text and "'0o17'" in text


@pytest.mark.parametrize(
    "value",
    [
        "*hunter2secret",
        "&hunter2secret",
        "!!int hunter2secret",
        "!!float hunter2secret",
        "!!binary hunter2secret",
        "!!timestamp hunter2secret",
        "!!bool hunter2secret",
        "!hunter2secret!x y",
        "!hunter2secret",
        "!<hunter2secret",
        '"hunter2secret\\zhunter2secret"',
        "&hunter2secret a, headers: {A: &hunter2secret b, C: *hunter2secreti}",
        "[hunter2secret",
        "{hunter2secret",
        "'hunter2secret",
        "@hunter2secret",
        "hunter2secret: hunter2secret: x",
        "[&hunter2secret]",
    ],
)
def test_no_error_in_yaml_shows_the_text_of_the_file(tmp_path: Path, value: str) -> None:
    file = tmp_path / "p.yaml"
    sink = "sinks: {o: {type: http, input: s, url: 'http://h/x', token: "
    file.write_text(BASE + sink + value + "}}\n")
    with pytest.raises(PipelineError) as raised:
        load(file, default(), {})
    assert "hunter" not in str(raised.value)
    assert int(raised.value.problems[0].line) >= 4
    file.write_text(BASE + sink + "abc}}\n")
    for written in (value, value.partition(",")[0]):
        if "hunter2secret a" in written:
            continue
        with pytest.raises(PipelineError) as raised:
            load(file, default(), {}, layers=Layers(sets=(f"sinks.o.token={written}",)))
        assert "hunter" not in str(raised.value)
        assert str(raised.value).startswith("--set sinks.o.token")
