"""The log through Spark, as batch and as stream."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from signoff.log import LogWriter, exclude
from signoff.log.spark import RangeReader, read_range
from tests.log.events import RECEIVED_AT, batch, numbered, small_settings, write
from tests.servers import PATIENCE_S

pytestmark = pytest.mark.spark


def numbers(frame: Any) -> list[int]:
    return [row["_sequence"] for row in frame.select("_sequence").collect()]


def read(spark: Any, directory: Path, **options: Any) -> Any:
    return spark.read.format("signoff").options(path=str(directory), **options).load()


class Stream:
    """A query that takes what is there and ends, as often as it is run; remembers every batch."""

    def __init__(self, spark: Any, directory: Path, checkpoint: Path, **options: Any) -> None:
        self._spark, self._checkpoint = spark, str(checkpoint)
        self._options = {"path": str(directory), **options}
        self.batches: list[list[int]] = []

    def run(self) -> list[list[int]]:
        self.batches = []
        frame = self._spark.readStream.format("signoff").options(**self._options).load()
        query = (
            frame.writeStream.foreachBatch(lambda rows, _: self.batches.append(numbers(rows)))
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_S)
        return self.batches


def test_batch_read_gives_every_column_of_every_event(spark: Any, directory: Path) -> None:
    write(directory, 3000)

    frame = read(spark, directory)

    assert frame.schema.simpleString() == (
        "struct<_sequence:bigint,payload:string,headers:map<string,string>,message_id:string,"
        "received_at:timestamp,unit:bigint,position:bigint,error:string>"
    )
    assert numbers(frame) == list(range(3000))
    row = frame.where("_sequence = 1234").first().asDict()
    assert row.pop("received_at").timestamp() == RECEIVED_AT.timestamp()
    assert row == {
        "_sequence": 1234,
        "payload": "1234",
        "headers": {"n": "1234"},
        "message_id": "m1234",
        "unit": 1,
        "position": 1234,
        "error": None,
    }


def test_batch_read_takes_a_range_in_several_tasks(spark: Any, directory: Path) -> None:
    write(directory, 50_000, group=1000)

    frame = read(spark, directory, startingSequence=5, endingSequence=45_005, parallelism=3)

    assert frame.rdd.getNumPartitions() == 3
    assert numbers(frame) == list(range(5, 45_005))


def test_payload_that_is_not_utf8_is_null_with_an_error_and_its_neighbours_are_whole(
    spark: Any, directory: Path
) -> None:
    writer = LogWriter(directory, small_settings())
    writer.append(batch([b"one", "größe".encode(), b"twelve chars\xff", b""]))
    writer.close()

    rows = read(spark, directory).select("payload", "error").collect()
    raw = read(spark, directory, encoding="binary").select("payload").collect()

    assert [tuple(row) for row in rows] == [
        ("one", None),
        ("größe", None),
        (None, "payload is not valid UTF-8 (byte 0xff at 12)"),
        ("", None),
    ]
    assert bytes(raw[2]["payload"]) == b"twelve chars\xff"


def test_excluded_events_are_withheld_from_batch_and_stream(
    spark: Any, directory: Path, tmp_path: Path
) -> None:
    write(directory, 100)
    exclude(directory, [7, 42])
    expected = [number for number in range(100) if number not in (7, 42)]

    assert numbers(read(spark, directory)) == expected
    assert Stream(spark, directory, tmp_path / "checkpoint").run() == [expected]


def test_stream_takes_no_more_than_it_is_allowed_and_goes_on_after_a_restart(
    spark: Any, directory: Path, tmp_path: Path
) -> None:
    write(directory, 250)
    stream = Stream(spark, directory, tmp_path / "checkpoint", maxEventsPerBatch=100)

    assert [(rows[0], rows[-1]) for rows in stream.run()] == [(0, 99), (100, 199), (200, 249)]
    assert stream.run() == []
    write(directory, 50)
    assert stream.run() == [list(range(250, 300))]


def test_stream_sees_events_as_they_become_durable(spark: Any, directory: Path, tmp_path: Path) -> None:
    writer = LogWriter(directory, small_settings())
    writer.append(numbered(0, 10))
    writer.sync()
    query = (
        spark.readStream.format("signoff").option("path", str(directory)).load()
        .writeStream.format("memory").queryName("seen")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )  # fmt: skip
    try:
        query.processAllAvailable()
        assert numbers(spark.table("seen")) == list(range(10))
        writer.append(numbered(10, 5))
        query.processAllAvailable()
        assert numbers(spark.table("seen")) == list(range(10))
        writer.sync()
        query.processAllAvailable()
        assert numbers(spark.table("seen")) == list(range(15))
        assert json.loads(query.lastProgress["sources"][0]["endOffset"]) == {"sequence": 15}
    finally:
        query.stop()
        writer.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxEventPerBatch": "5"}, 'did you mean "maxEventsPerBatch"'),
        ({"parallelism": "many"}, '"parallelism" must be a whole number from 1 on'),
        ({"encoding": "latin-1"}, '"encoding" is utf-8 or binary'),
        ({"path": ""}, '"path" is missing'),
    ],
)
def test_wrong_options_are_refused_with_a_hint(
    spark: Any, directory: Path, options: dict[str, str], message: str
) -> None:
    from pyspark.errors import PySparkException

    write(directory, 1)
    with pytest.raises(PySparkException, match=message):
        read(spark, directory, **options) if "path" not in options else spark.read.format("signoff").load()


def test_damage_stops_the_query_with_a_code_in_the_text(spark: Any, directory: Path) -> None:
    from pyspark.errors import PySparkException

    write(directory, 100)
    segment = next(directory.glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[400] ^= 1
    segment.write_bytes(data)

    with pytest.raises(PySparkException, match=r"\[log-corrupt\]"):
        read(spark, directory).collect()


def test_a_range_planned_in_the_driver_has_the_rows_the_data_source_gives(spark: Any, tmp_path: Path) -> None:
    write(tmp_path, 25_000)
    log = LogWriter(tmp_path, small_settings())
    log.append(batch([b"\xff"], 25_000))
    log.close()
    exclude(tmp_path, [7])
    for start, end in ((0, 25_001), (5, 9), (24_999, 25_001), (3, 3)):
        planned = read_range(spark, tmp_path, start, end)
        expected = read(spark, tmp_path, startingSequence=start, endingSequence=end)
        assert planned.schema == expected.schema
        assert planned.orderBy("_sequence").collect() == expected.orderBy("_sequence").collect()
    assert numbers(read_range(spark, tmp_path, 5, 10, without=[6, 8, 30])) == [5, 9]


def test_one_frame_reads_whatever_range_its_thread_was_told(spark: Any, tmp_path: Path) -> None:
    write(tmp_path, 25_000)
    reader = RangeReader(spark, tmp_path)
    frames = {tasks: reader.rows(tasks) for tasks in (1, spark.sparkContext.defaultParallelism)}

    def rows_of(start: int, end: int) -> list[int]:
        return sorted(numbers(frames[reader.tell(start, end)]))

    assert rows_of(0, 25_000) == list(range(25_000)), "by all tasks"
    assert rows_of(5, 9) == [5, 6, 7, 8]
    assert rows_of(3, 3) == []
    exclude(tmp_path, [6])
    assert rows_of(5, 9) == [5, 7, 8], "what was excluded since it was planned is left out"
    with ThreadPoolExecutor(4) as threads:
        ranges = [(n * 100, n * 100 + 50) for n in range(20)]
        found = list(threads.map(lambda ends: rows_of(*ends), ranges))
    assert found == [[n for n in range(start, end) if n != 6] for start, end in ranges]
