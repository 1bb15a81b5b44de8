"""The tables of `lookup`: read as a whole, or the one before stays."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from signoff.transforms.lookup.step import TableConfig
from signoff.transforms.lookup.tables import TableError, Tables, _table, checked

NANOSECONDS = pa.array([1], pa.timestamp("ns"))
TYPES = pa.schema([("id", pa.int32()), ("name", pa.string())])


def test_the_same_table_is_read_from_csv_parquet_and_sqlite(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id;name\n1;a\n02;\n")
    pq.write_table(pa.table({"id": [1, 2], "name": ["a", None]}), tmp_path / "t.parquet")
    with closing(sqlite3.connect(tmp_path / "t.db")) as made:
        made.executescript("CREATE TABLE t (id INT, name TEXT); INSERT INTO t VALUES (1, 'a'), (2, NULL)")
    places = {"t.csv": {"delimiter": ";"}, "t.parquet": {}, "t.db": {"table": "t"}}
    for path, fields in places.items():
        table = TableConfig.model_validate({"path": path, **fields}).read(tmp_path)
        read = checked(table, ["id"], ["name"], 10, TYPES)
        assert read.to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": None}], path
    plain = checked(TableConfig(path="t.csv", delimiter=";").read(tmp_path), ["id"], [], 10, None)
    assert plain.to_pylist()[1] == {"id": "02"}, "a code with a zero in front stays one"


@pytest.mark.parametrize(
    ("rows", "keys", "most", "said"),
    [
        ({"id": [1, 1], "name": ["a", "b"]}, ["id"], 9, "1 keys are there more than once, the first is id 1"),
        ({"id": [1], "name": ["a"]}, ["nr"], 9, 'no column "nr"; it has id, name'),
        ({"id": [1, 2], "name": ["a", "b"]}, ["id"], 1, "more than max_rows"),
        ({"id": ["x"], "name": ["a"]}, ["id"], 9, '"id" does not fit into int32'),
        ({"id": [7], "name": ["a"], "x": [0.5]}, ["x"], 9, "floating-point numbers are no keys"),
        ({"id": [7], "name": ["a"], "ns": NANOSECONDS}, ["ns"], 9, "nanoseconds, which Spark cuts"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(
    rows: dict[str, list[object]], keys: list[str], most: int, said: str
) -> None:
    with pytest.raises(TableError, match=said):
        checked(pa.table(rows), keys, ["name"], most, None if {*rows} - {"id", "name"} else TYPES)


def test_rows_without_a_key_are_no_duplicates_of_each_other() -> None:
    table = pa.table({"id": [None, None, 1], "name": ["a", "b", "c"]})
    assert checked(table, ["id"], ["name"], 9, TYPES).to_pylist() == [{"id": 1, "name": "c"}]


def test_a_table_is_replaced_as_a_whole_or_stays_and_the_run_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now, answers = (
        [0.0],
        [pa.table({"id": [1]}), TableError("gone"), pa.table({"id": [1]}), pa.table({"id": [2]})],
    )
    tables = Tables(lambda: now[0])

    def read() -> pa.Table:
        answer = answers.pop(0)
        if isinstance(answer, TableError):
            raise answer
        return answer

    def version(at: float) -> int:
        now[0] = at
        return tables.get("step", "key", read, 10).version

    assert [version(0), version(9)] == [1, 1] and len(answers) == 3
    with caplog.at_level(logging.WARNING):
        assert version(10) == 1
    assert 'the table of "step" was not read again, the one of 10 s ago is used: gone' in caplog.text
    assert version(15) == 1 and len(answers) == 2, "a failed reading is not repeated at once"
    assert version(20) == 1, "the same table is no other version"
    assert version(30) == 2
    with pytest.raises(TableError):
        tables.get("other", "new", lambda: (_ for _ in ()).throw(TableError("never there")), None)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (b"k,v,v\n1,new,x\n", 'several columns "v"'),
        (b"k,v\xff,v\n1,new,x\n", "UnicodeDecodeError"),
        (b"k,w\n1,new\n", 'no column "v"'),
        (b"", "Empty CSV file"),
    ],
)
def test_whatever_is_wrong_with_a_table_that_is_read_again_the_one_before_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, table: bytes, said: str
) -> None:
    (tmp_path / "t.csv").write_bytes(b"k,v\n1,old\n")
    tables, config = Tables(lambda: next(times)), TableConfig(path="t.csv")
    times = iter([0.0, 10.0])

    def read() -> pa.Table:
        return checked(config.read(tmp_path), ["k"], ["v"], 9, None)

    first = tables.get("step", "key", read, 10)
    (tmp_path / "t.csv").write_bytes(table)
    assert tables.get("step", "key", read, 10) is first
    assert said in caplog.text
    with pytest.raises(TableError, match=said):
        Tables().get("step", "key", read, 10)


def test_a_table_whose_types_have_changed_is_not_put_in_place_of_the_one_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = [pa.table({"k": ["1"], "v": ["a"]}), pa.table({"k": ["1"], "v": [2]})]
    tables, times = Tables(lambda: next(times)), iter([0.0, 10.0])
    first = tables.get("step", "key", lambda: answers.pop(0), 10)
    assert tables.get("step", "key", lambda: answers.pop(0), 10) is first and not answers
    assert '"v" is int64 now and was string' in caplog.text


@pytest.mark.parametrize("value", [Decimal("Infinity"), 2**64, "a\ud800", range(3)])
def test_values_that_no_table_can_hold_are_named_as_such(value: object) -> None:
    with pytest.raises(TableError):
        _table(["k"], [(value,)])


def test_of_two_columns_of_one_name_none_is_taken_in_silence() -> None:
    with pytest.raises(TableError, match='several columns "id"'):
        checked(_table(["id", "id"], [(1, 2)]), ["id"], [], 9, None)


@pytest.mark.parametrize(
    "fields",
    [{}, {"path": "a.csv", "url": "postgresql://h/d"}, {"path": "a.csv", "table": "t"}, {"path": "a.db"}],
)
def test_a_table_is_in_one_place(fields: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        TableConfig.model_validate(fields)
