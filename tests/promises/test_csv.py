"""CSV with types: a value that does not fit is its row's dead letter, with column, value and reason."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from signoff.catalog import default
from signoff.errors import PipelineError
from signoff.pipeline.load import load
from signoff.sources.files.config import FilesConfig
from signoff.transforms.contract import Step
from signoff.transforms.frame import begin
from signoff.transforms.parsing.parse_csv import ParseCsvConfig
from tests.fuzz.targets import mutated
from tests.promises.product import Inline, books

Make = Callable[..., Inline]
CSV = {"type": "files", "path": "./in/*.csv"}
TYPES = "id BIGINT NOT NULL, day DATE, price DECIMAL(6,2), count INT, at TIMESTAMP, ok BOOLEAN, note STRING"
HEADER = "id;day;price;count;at;ok;note;more"


def out(given: str, path: str = "out") -> dict[str, Any]:
    return {"type": "files", "input": given, "path": path}


@pytest.mark.spark
@pytest.mark.case(5)
def test_rows_of_csv_have_the_types_of_the_schema_or_say_which_value_does_not_fit(inline: Make) -> None:
    typed = {
        **CSV,
        "delimiter": ";",
        "quote": "'",
        "escape": "\\",
        "schema": TYPES,
        "null_values": ["", "-"],
        "date_format": "dd.MM.yyyy",
        "timestamp_format": "dd.MM.yyyy HH:mm",
        "keep": ["headers"],
    }
    plain = {**CSV, "path": "./plain/*.csv", "header": False, "schema": "n INT, name STRING"}
    steps = {"large": {"type": "filter", "input": "typed", "where": "price > 5"}}
    product = inline(
        sources={"typed": typed, "plain": plain},
        transforms=steps,
        sinks={"out": out("large"), "plain_out": out("plain", "plain_out")},
    )
    lines = [
        HEADER,
        "1;31.12.2026;12.50;7;01.02.2026 13:45;true;'it\\'s; fine';x",
        "2;-;6.5;;-;no;-;x",
        "3;2026-12-31;12.345;1.5;01.02.2026;maybe;n;x",
        "-;31.12.2026;99999.99;99999999999;;;n;x",
        "5;;1;;;;n;x",
        "6;;1",
    ]
    product.put("a.csv", lines)
    product.put("b.csv", ["id;day", "9;-"])
    product.put("c.csv", ["1,one", "x,two", "3"], folder="plain")
    assert product.run_once().code == 0
    first, second = product.rows()
    assert (first["id"], first["day"], first["price"], first["count"]) == (1, "2026-12-31", 12.5, 7)
    assert first["at"].startswith("2026-02-01T13:45") and first["ok"] is True
    assert first["note"] == "it's; fine" and first["headers"]["file"] == "in/a.csv"
    assert second["day"] is None and second["note"] is None and second["ok"] is False
    assert [row["name"] for row in product.rows("plain_out")] == ["one"]
    reasons = {letter["event_id"]: letter["reason"] for letter in product.dead_letters()}
    assert reasons["typed/2"] == (
        'column "day": "2026-12-31" does not match "dd.MM.yyyy"; '
        'column "price": "12.345" does not fit into DECIMAL(6,2); '
        'column "count": "1.5" is not an INT; '
        'column "at": "01.02.2026" does not match "dd.MM.yyyy HH:mm"; '
        'column "ok": "maybe" is not a BOOLEAN'
    )
    assert reasons["typed/3"] == (
        'column "id" is empty, and is NOT NULL; column "price": "99999.99" does not fit into DECIMAL(6,2); '
        'column "count": "99999999999" does not fit into INT'
    )
    assert reasons["typed/5"] == "row has 3 fields, the header has 8"
    assert reasons["typed/6"].startswith('there is no column "price"; there is: id, day; there is no column')
    assert reasons["plain/1"] == 'column "n": "x" is not an INT'
    assert reasons["plain/2"] == "row has 1 fields, the schema has 2"
    assert {letter["stage"] for letter in product.dead_letters()} == {"typed", "plain"}
    assert product.account("typed") == books(delivered=2, dropped=1, dead_lettered=4)
    assert product.account("plain") == books(delivered=1, dead_lettered=2)


@pytest.mark.spark
@pytest.mark.case(5, 40)
def test_lines_of_csv_have_types_and_a_letter_is_replayed_with_the_mended_schema(inline: Make) -> None:
    def made(price: str) -> Inline:
        parse = {
            "type": "parse_csv",
            "input": "incoming",
            "schema": f"id INT, price {price}, note STRING",
            "null_values": ["NULL"],
        }
        sources = {
            "incoming": {**CSV, "format": "text"},
            "typed": {**CSV, "path": "./typed/*.csv", "schema": f"id INT, price {price}"},
        }
        sinks = {"out": out("parsed"), "typed_out": out("typed", "typed_out")}
        return inline(sources=sources, transforms={"parsed": parse}, sinks=sinks)

    product = made("INT")
    product.put("a.csv", ['1,2,"a ""b"", c"', "2,2.5,", "3,NULL,x"])
    product.put("b.csv", ["id,price", "7,0.5"], folder="typed")
    assert product.run_once().code == 0
    assert [(row["id"], row["price"], row["note"]) for row in product.rows()] == [
        (1, 2, 'a "b", c'),
        (3, None, "x"),
    ]
    assert {letter["event_id"]: letter["reason"] for letter in product.dead_letters()} == {
        "incoming/1": 'column "price": "2.5" is not an INT',
        "typed/0": 'column "price": "0.5" is not an INT',
    }
    mended = made("DOUBLE")
    running = mended.start()
    assert mended.command("dead-letters", "replay", str(mended.file), "--all").code == 0
    assert running.terminate().code == 0
    assert (2, 2.5, "") in [(row["id"], row["price"], row["note"]) for row in mended.rows()]
    assert [(row["id"], row["price"]) for row in mended.rows("typed_out")] == [(7, 0.5)]


def parsed(spark: SparkSession, texts: Sequence[str], **fields: Any) -> list[str | list[str | None]]:
    """For each text the values of its row, as texts, or the reason of its letter."""
    rows = spark.createDataFrame(list(enumerate(texts)), "_sequence BIGINT, payload STRING").selectExpr(
        "*", "current_timestamp() AS received_at", "CAST(NULL AS STRING) AS error"
    )
    frame, view = begin(rows, ("payload",), "incoming", "dead_letter")
    config = ParseCsvConfig.model_validate({"type": "parse_csv", "input": "incoming", **fields})
    made = config.compile(Step("parsed", Path()), view)[None]
    (error,) = (each for each in frame.errors if each.stage == "parsed")
    assert error.describe is not None
    values = [F.col(physical).cast("string") for physical in made.columns.values()]
    found = frame.df.select("_sequence", F.col(error.column), made.alive, F.array(*values)).collect()
    assert all(alive is (said is None) for _, said, alive, _ in found)
    return [row if said is None else error.describe(said) for _, said, _, row in sorted(found)]


@pytest.mark.spark
@pytest.mark.case(5)
def test_no_line_of_an_event_is_left_out_in_silence_and_none_is_too_wide(spark: SparkSession) -> None:
    several = "several lines; an event is one line, with line breaks only within quotes"
    cases: dict[str, str | list[str | None]] = {
        "1,a\n2,b\n3,c": several,
        "\n1,a": several,
        "1,a\r\n2,b": several,
        '1,"x,"y\nz","w': several,
        '1,"x\n""y"': ["1", 'x\n"y'],
        "1,a\r\n": ["1", "a"],
        "," * 20_500: "20501 fields, expected 2",
        "2,b": ["2", "b"],
        f'3,"{"," * 30_000}"': ["3", "," * 30_000],
        "\n": "the line is empty",
        '4,"' + 'a\n""' * 50_000 + '"': ["4", 'a\n"' * 50_000],
    }
    found = parsed(spark, list(cases), schema="n INT, s STRING")
    assert [(text[:30], one) for text, one in zip(cases, found, strict=True)] == [
        (text[:30], one) for text, one in cases.items()
    ]
    assert parsed(
        spark, ["1;'a\\'\n'", "1;'a\\\\'\n'"], schema="n INT, s STRING", separator=";", quote="'", escape="\\"
    ) == [["1", "a'\n"], several]


@pytest.mark.spark
@pytest.mark.case(5)
def test_a_value_is_never_rounded_cut_or_completed(spark: SparkSession) -> None:
    wrong = {
        "p": ["1.5E-3", "1.239e0", "1.239", "1e2", f"0.{'0' * 5_000}1"],
        "d": ["2026-11-18 garbage", "2026", "2026-11", "2026-11-18T10:00", "2026-02-30"],
        "t": ["12:30", "2026", "2026-11-18T12:00:00.1234569Z", "2026-11-18T12:00:00 Nowhere/Land"],
        "l": ["2026-11-18T12:00:00+05:00", "2026-11-18T12:00:00Z", "12:30"],
        "w": ["1e400", "-1e400", "1e-400", "12d", "1f", "0x1p3", f"1{'0' * 400}"],
        "f": ["1e39", "0.1e-60"],
    }
    texts = [
        ",".join(text if name == column else "" for name in wrong)
        for column, each in wrong.items()
        for text in each
    ]
    right = [
        " -1.50 ,2026-11-18,2026-11-18T12:00:00.123456+05:00,2026-11-18 12:30,-1e308,-inf",
        ".5,,2026-11-18 12:00:00.1234560 Europe/Berlin,2026-11-18T12:30:01.5,0e5,0.0",
        "1.2300000,,2026-11-18,2026-11-18,NaN,1.5",
    ]
    schema = "p DECIMAL(10,2), d DATE, t TIMESTAMP, l TIMESTAMP_NTZ, w DOUBLE, f FLOAT"
    found = parsed(spark, [*texts, *right], schema=schema)
    columns = [column for column, each in wrong.items() for _ in each]
    for column, text, one in zip(columns, texts, found, strict=False):
        assert isinstance(one, str) and one.startswith(f'column "{column}": "'), (text, one)
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    times = [datetime(2026, 11, 18, 7, 0, 0, 123456), datetime(2026, 11, 18, 11, 0, 0, 123456)]
    local = [str(time.replace(tzinfo=UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None)) for time in times]
    first, second, third = found[len(texts) :]
    assert first == ["-1.50", "2026-11-18", local[0], "2026-11-18 12:30:00", "-1.0E308", "-Infinity"]
    assert second == ["0.50", None, local[1], "2026-11-18 12:30:01.5", "0.0", "0.0"]
    assert third[0] == "1.23" and third[3:] == ["2026-11-18 00:00:00", "NaN", "1.5"], third


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("type: parse_json, schema: 'id STRING, price DECIMAL(6,2)'", 'asks for "price DECIMAL(6,2)"'),
        ("type: parse_csv, schema: 'id INT'", "parses a line"),
    ],
)
def test_csv_that_is_parsed_once_more_is_a_problem_with_a_hint(tmp_path: Path, step: str, said: str) -> None:
    file = tmp_path / "p.yaml"
    text = (
        "name: p\nsources: {s: {type: files, path: in/*.csv}}\n"
        "transforms:\n  some: {type: filter, input: s, where: 'true'}\n"
        f"  parsed: {{input: some, {step}}}\n"
        "sinks: {out: {type: console, input: parsed}}\n"
    )
    file.write_text(text)
    with pytest.raises(PipelineError) as caught:
        load(file, default(), {})
    (problem,) = caught.value.problems
    assert (problem.code, problem.line) == ("csv-parsed-twice", 5)
    assert said in problem.message and "schema: id" in problem.hint
    file.write_text(text.replace("DECIMAL(6,2)", "TIMESTAMP").replace("in/*.csv", "in/*.txt"))
    load(file, default(), {})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"path": "a.jsonl", "schema": "n INT"}, "a schema is for CSV"),
        ({"path": "a.csv", "null_values": ["-"]}, '"null_values" needs a "schema"'),
        ({"path": "a.csv", "delimiter": "'", "quote": "'"}, "different characters"),
        ({"path": "a.csv", "quote": "\n"}, "cannot be the quote"),
    ],
)
def test_fields_of_csv_that_contradict_each_other_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        FilesConfig.model_validate({"type": "files", **fields})


LINES = (b'1,a,"b ""c"""', b"1,2,3", b'"x,y",,z', b",,", b' 1 ,"two\nlines",\xc3\xa9', b"a\\,b,c,d")


@pytest.mark.spark
@pytest.mark.case(5, 46)
def test_generated_lines_become_their_values_or_a_reason(spark: SparkSession) -> None:
    """Whatever stands in a line, none is left out, and none fails its neighbours."""
    generator = random.Random(11)
    texts = [
        mutated(generator, generator.choice(LINES), most=4).decode(errors="replace") for _ in range(2_000)
    ]
    found = parsed(spark, texts, schema="a STRING, b STRING, c STRING")
    assert len(found) == len(texts)
    assert 100 < sum(isinstance(one, str) for one in found) < 1_900
    for text, one in zip(texts, found, strict=True):
        if isinstance(one, str):
            assert one, text
            continue
        try:
            (wanted,) = csv.reader(io.StringIO(text.rstrip("\r\n"), newline=""), strict=True)
        except (csv.Error, ValueError):
            continue  # what is meant is not certain
        assert one == [value or None for value in wanted], text
