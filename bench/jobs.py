"""Analyses of stored results several ways: as jobs of Signoff, in plain PySpark, and in DuckDB.

The results are those of `signoff_alarms`: so many rows of failed equipment, as many of grid voltage, over a
hundred days, drawn at random from a seed; 2,000 stations. They lie in Parquet directories and, with
--postgres, in tables.

    signoff   a run of the job that ships (`src/signoff_alarms/jobs`), to the end of its report as JSON
    spark     the same queries by `spark.sql` over `spark.read`, rows collected and written as JSON; from
              PostgreSQL, which PySpark cannot read without a JDBC driver, rows fetched by psycopg
    duckdb    for `repeated_failures` and `part_of_day` the same question in its SQL, if it is installed

The first two share one Spark session; a round to warm up is not counted. Shown is the best of the rounds, and
how much of plain PySpark's speed a job has. All must say the same rows.

    .venv/bin/python bench/jobs.py [--rows 10000000] [--rounds 2] [--only NAMES] [--postgres URL] [--work DIR]
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pyspark.sql import SparkSession

from signoff.engine.spark.cluster import Cluster
from signoff.jobs.compute import batch_session, queries
from signoff.jobs.parameters import asked
from signoff.jobs.run import JobRun, load_job
from signoff_alarms import analyses, pipeline, storage

BEGIN, DAYS = 1_619_827_200, 100
PERIOD = {"from": "2021-05-01T00:00:00Z", "to": "2021-05-31T00:00:00Z"}
"""A month of the hundred days is asked about."""
STATIONS = 2_000
PIECE = 1_000_000
TABLES = {
    "failed_equipment": ("numberOfEquipmentFailures", 600, (303,), (121, 115, 141, 122)),
    "grid_voltage": ("numberOfPowerGridVoltageOutrage", 3600, (308, 309), (121,)),
}
DUCKDB = {
    "repeated_failures": """
        SELECT strftime(windowStart AT TIME ZONE 'UTC', '%Y-%m-%d') AS day, stationId, datapointId,
               sum(numberOfEquipmentFailures)::BIGINT AS failures,
               sum(numberOfEquipmentFailures) > 3 AS moreThanThree
        FROM failed_equipment
        WHERE windowStart >= '{from}'::TIMESTAMPTZ AND windowStart < '{to}'::TIMESTAMPTZ GROUP BY ALL""",
    "part_of_day": """
        SELECT CASE WHEN h < 6 THEN 'night' WHEN h < 12 THEN 'morning' WHEN h < 18 THEN 'noon'
                    ELSE 'evening' END AS partOfDay, alarmId, sum(breaches)::BIGINT AS breaches
        FROM (SELECT hour(windowStart AT TIME ZONE 'UTC') AS h, alarmId,
                     numberOfPowerGridVoltageOutrage AS breaches
              FROM grid_voltage
              WHERE windowStart >= '{from}'::TIMESTAMPTZ AND windowStart < '{to}'::TIMESTAMPTZ)
        GROUP BY ALL""",
}


def main() -> None:
    options = _options()
    logging.basicConfig(level=logging.WARNING)
    work = options.work or Path(tempfile.mkdtemp(prefix="signoff-bench-jobs-"))
    try:
        _make(work / "tables", options.rows)
        stores = ["parquet", *(["postgres"] if options.postgres else [])]
        if options.postgres:
            _load(work / "tables", options.postgres)
        print(f"{options.rows:,} rows of each of {len(TABLES)} tables")
        spark: SparkSession | None = None
        for store in stores:
            for name in options.only.split(","):
                file = _job(work, name, store, options.postgres)
                spark = spark or Cluster.start(load_job(file)).spark
                _compare(spark, file, name, store, work, options.rounds)
    finally:
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)


def _compare(spark: SparkSession, file: Path, name: str, store: str, work: Path, rounds: int) -> None:
    ways: dict[str, Callable[[], list[Any]]] = {
        "signoff": lambda: _by_job(spark, file, name, work),
        "spark": lambda: _by_spark(spark, file, work),
    }
    if store == "parquet" and name in DUCKDB and _has_duckdb():
        ways["duckdb"] = lambda: _by_duckdb(name, work)
    best, said = dict.fromkeys(ways, float("inf")), {}
    for turn in range(rounds + 1):
        for way, run in ways.items():
            began = time.perf_counter()
            rows = run()
            took = time.perf_counter() - began
            said[way] = sorted(json.dumps(row, sort_keys=True) for row in rows)
            if turn:
                best[way] = min(best[way], took)
    for way, rows in said.items():
        assert rows == said["spark"], f"{name}: {way} says something else than spark"
    shown = ", ".join(f"{way} {seconds:.1f} s" for way, seconds in best.items())
    print(
        f"{store:8} {name:22} {len(said['spark']):7,} rows: {shown}; "
        f"signoff at {best['spark'] / best['signoff']:.2f} of spark",
        flush=True,
    )


def _by_job(spark: SparkSession, file: Path, name: str, work: Path) -> list[Any]:
    run = JobRun(file, asked(load_job(file), PERIOD), spark=spark)
    code = run.execute()
    assert code == 0 and run.record is not None, run.record and run.record.reason
    made = json.loads((work / "reports" / f"{name}.json").read_text())
    return [_rounded(row) for row in made["inputs"]["rows"]["rows"]]


def _by_spark(spark: SparkSession, file: Path, work: Path) -> list[Any]:
    """The queries of the job over plain readers of Spark."""
    graph = load_job(file)
    wanted = asked(graph, PERIOD)
    session = batch_session(graph, spark)
    tables = {}
    for name, node in graph.nodes.items():
        if node.config.type == "table":
            tables[name] = _plain(session, node.config)
    frames = queries(graph, session, tables, wanted.values)
    rows = [json.loads(row) for row in frames["all"].toJSON().collect()]
    (work / "plain.json").write_text(json.dumps(rows))
    part = "rows" if any("rows" in row for row in rows) else "correlated"
    return [_rounded(row[part]) for row in rows if row["part"] == part]


def _plain(session: SparkSession, config: Any) -> Any:
    begin, end = (f"TIMESTAMP '{PERIOD[name]}'" for name in ("from", "to"))
    if config.url is None:
        found = session.read.parquet(str(config.path))
    else:
        found = session.createDataFrame(_fetched(config.url.get(), config.table, PERIOD))
    time_column = "eventTime" if "eventTime" in found.columns else "windowStart"
    return found.where(f"{time_column} >= {begin} AND {time_column} < {end}")


def _fetched(url: str, table: str, period: dict[str, str]) -> Any:
    """What PySpark can do without a JDBC driver: fetch by a client, and hand over as pandas."""
    import pandas as pd
    import psycopg

    time_column = "eventTime" if table == "late_alarms" else "windowStart"
    query = f'SELECT * FROM "{table}" WHERE "{time_column}" >= %s AND "{time_column}" < %s'
    with psycopg.connect(url) as connection:
        cursor = connection.execute(query, (period["from"], period["to"]))  # type: ignore[arg-type]
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        return pd.DataFrame(cursor.fetchall(), columns=names)


def _by_duckdb(name: str, work: Path) -> list[Any]:
    import duckdb

    with duckdb.connect() as connection:
        for table in TABLES:
            place = work / "tables" / table / "*.parquet"
            connection.execute(f"CREATE VIEW {table} AS SELECT * FROM '{place}'")
        cursor = connection.execute(DUCKDB[name].format(**PERIOD))
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _job(work: Path, name: str, store: str, postgres: str | None) -> Path:
    """The job that ships, over these tables; a Parquet directory is no `table` of a database."""
    stored = (
        {"type": "postgres", "url": postgres} if store == "postgres" else {"type": "sqlite", "path": "x.db"}
    )
    windows = pipeline.Windows().anchors["window_seconds"]
    home = analyses.Home(work / store)
    file = analyses.write(home, analyses.Analysis(name), {"x-storage": stored, "x-window_seconds": windows})
    job = yaml.safe_load(file.read_text())
    job["sinks"]["report"] |= {"formats": ["json"], "path": f"{work}/reports/${{out}}/{name}"}
    for source in job["sources"].values():
        if store == "parquet":
            source["path"] = str(work / "tables" / source.pop("table"))
            source.pop("schema")  # the files know their types
            source["where"] = source["where"].replace('"', "`")
            if "complete_to" in source:
                source["complete_to"] = source["complete_to"].replace('"', "`")
    made = file.with_name(f"{name}_of_{store}.yaml")
    made.write_text(yaml.safe_dump(job, sort_keys=False))
    return made


def _make(place: Path, rows: int) -> None:
    if place.exists():
        return
    numbers = np.random.default_rng(7)
    for table, (name, step, alarms, sensors) in TABLES.items():
        (place / table).mkdir(parents=True)
        for part in range(-(-rows // PIECE)):
            count = min(PIECE, rows - part * PIECE)
            start = BEGIN + numbers.integers(0, DAYS * 86_400 // step, count) * step
            columns = {
                "windowStart": pa.array(start * 1_000_000, pa.timestamp("us", "UTC")),
                "windowEnd": pa.array((start + step) * 1_000_000, pa.timestamp("us", "UTC")),
                "stationId": pa.array(1_161_114_000 + numbers.integers(0, STATIONS, count)),
                "datapointId": pa.array(numbers.choice(sensors, count), pa.int32()),
                "alarmId": pa.array(numbers.choice(alarms, count), pa.int32()),
                name: pa.array(numbers.integers(1, 8, count)),
            }
            pq.write_table(pa.table(columns), place / table / f"{part:05}.parquet")
    late = storage.TABLES["late_alarms"]
    types = {"text": pa.string(), "bigint": pa.int64(), "integer": pa.int32(), "double": pa.float64()}
    types |= {"time": pa.timestamp("us", "UTC"), "boolean": pa.bool_()}
    (place / "late_alarms").mkdir()
    schema = pa.schema([(name, types[kind]) for name, kind in late.items()])
    pq.write_table(schema.empty_table(), place / "late_alarms" / "00000.parquet")


def _load(place: Path, url: str) -> None:
    import psycopg

    storage.in_postgres(url)
    with psycopg.connect(url) as connection:
        for table in TABLES:
            connection.execute(f'TRUNCATE "{table}"')  # type: ignore[arg-type]
            number = 0
            for file in sorted((place / table).iterdir()):
                rows = pq.read_table(file)
                names = ", ".join(f'"{name}"' for name in ("event_id", *rows.column_names))
                with connection.cursor().copy(f'COPY "{table}" ({names}) FROM STDIN') as copy:
                    for batch in rows.to_batches(50_000):
                        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                            number += 1
                            copy.write_row((f"{table}/{number}", *row))
            connection.execute(f'ANALYZE "{table}"')  # type: ignore[arg-type]


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Without what only the job adds, and without the last digits of sums in another order; whole seconds
    have no fraction, which Spark writes and a report does not."""
    left_out = ("pValue", "n")
    return {
        name: round(value, 9) if isinstance(value, float)
        else value.replace(".000Z", "Z") if isinstance(value, str) else value
        for name, value in row.items()
        if name not in left_out and value is not None
    }  # fmt: skip


def _has_duckdb() -> bool:
    from importlib.util import find_spec

    return find_spec("duckdb") is not None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="repeated_failures,part_of_day,busy_windows,voltage_and_failures")
    parser.add_argument("--postgres")
    parser.add_argument("--work", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
