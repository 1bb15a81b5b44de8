"""What `dedupe` costs: the index of keys alone, and in a plan beside Spark's dropDuplicatesWithinWatermark.

.venv/bin/python bench/dedupe.py index [--keys 10000000]     keys a second, memory and bytes on disk
.venv/bin/python bench/dedupe.py spark [--events 500000]     the same log through both, as a ratio
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

BATCH = 10_000
MEGABYTE = 1024**2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["index", "spark"])
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--in", dest="place", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="signoff-dedupe-", dir=given.place) as name:
        done = index(Path(name), given.keys) if given.what == "index" else spark(Path(name), given.events)
    print(json.dumps(done))


def index(directory: Path, keys: int) -> dict[str, Any]:
    """Claims of new keys, with one in a hundred that repeats an old one, while the index grows; most of
    what it holds then is put there in bulk."""
    from signoff.ledger.fates import Fate
    from signoff.stateful.key_claims import Arrival, Decision
    from signoff.stateful.key_index import FILE, KeyIndex

    known, process = KeyIndex(directory / FILE), psutil.Process(os.getpid())
    samples: list[dict[str, Any]] = []
    held = 0

    def claim(number: int) -> None:
        nonlocal held
        began, busy = time.perf_counter(), time.process_time()
        for start in range(held, held + number, BATCH):
            rows = [Arrival(n, "", n, _key(n if n % 100 else n // 2)) for n in range(start, start + BATCH)]
            decided = known.claim("once", "k", "a", rows, 10**15, lambda *_: Fate.SETTLED)
            assert sum(decision == Decision.REPEATS for decision, _ in decided) <= BATCH // 100
        held += number
        sample = {
            "keys": held,
            "a_second": round(number / (time.perf_counter() - began)),
            "a_second_of_cpu": round(number / (time.process_time() - busy)),
            "resident_mb": round(process.memory_info().rss / MEGABYTE),
            "disk_mb": round(sum(f.stat().st_size for f in directory.iterdir()) / MEGABYTE),
        }
        print(json.dumps(sample), flush=True)
        samples.append(sample)

    claim(10 * BATCH)
    for share in (10, 2, 1):
        upto = keys // share
        with known._store.write() as db:
            rows = ((n, n, _key(n)) for n in range(held, upto))
            db.execute("DROP INDEX owners_by_key")
            db.executemany("INSERT INTO owners VALUES (1, 1, ?, '', ?, ?)", rows)
            db.execute("CREATE INDEX owners_by_key ON owners (step, key, received)")
            db.execute("UPDATE steps SET keys = ?", (upto,))
        held = upto
        claim(10 * BATCH)
    forgot = time.perf_counter()
    number = known.forget_beyond("once", "k", held - 10 * BATCH)
    rate = round(number / (time.perf_counter() - forgot))
    return {"keys": held, "samples": samples, "forgotten_a_second": rate}


def _key(number: int) -> bytes:
    return hashlib.md5(str(number).encode()).digest()


def spark(directory: Path, events: int) -> dict[str, Any]:
    from pyspark.sql import functions as F  # noqa: N812

    from signoff.engine.plan.duplicates import decide_repeats
    from signoff.engine.spark.session import start_session
    from signoff.ledger.ledger import Ledger
    from signoff.log.spark import RangeReader
    from signoff.pipeline.settings import SparkSettings
    from signoff.transforms.contract import Step
    from signoff.transforms.dedupe import DedupeConfig
    from signoff.transforms.frame import begin

    session = start_session(
        "bench", SparkSettings(master="local[2]"), log_file=directory / "spark.log", python_path=directory
    )
    log = write_log(directory / "log" / "incoming", events)
    size = 20_000
    with Ledger(directory / "ledger.db") as ledger:
        reader = RangeReader(session, log, "utf-8", 1)
        step = Step(
            "once", directory, False, repeats=decide_repeats(directory, "incoming", "once", replay=False)
        )

        def plan(dedupe: bool) -> Any:
            _, view = begin(reader.rows(1), ("message_id",), "incoming", "dead_letter")
            if dedupe:
                config = DedupeConfig(input="incoming", keys=("message_id",))
                (view,) = config.compile(step, view).values()
            return view.frame.df.where(F.col(view.alive)).select("_sequence")

        def run(rows: Any, sink: str) -> float:
            began = time.perf_counter()
            for start in range(0, events, size):
                if sink:
                    ledger.open_batch("incoming", start, start + size, [sink])
                reader.tell(start, start + size)
                rows.select("*").write.format("noop").mode("overwrite").save()
            return time.perf_counter() - began

        run(plan(False), "")
        without, ours = run(plan(False), ""), run(plan(True), "out")
    theirs = {}
    for provider in ("HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"):
        session.conf.set(
            "spark.sql.streaming.stateStore.providerClass",
            f"org.apache.spark.sql.execution.streaming.state.{provider}",
        )
        session.conf.set("spark.sql.shuffle.partitions", "2")
        rows = (
            session.readStream.format("signoff")
            .options(path=str(log), maxEventsPerBatch=str(size))
            .load()
            .withWatermark("received_at", "1 hour")
            .dropDuplicatesWithinWatermark(["message_id"])
            .select("_sequence")
        )
        began = time.perf_counter()
        try:
            query = (
                rows.writeStream.format("noop")
                .option("checkpointLocation", str(directory / provider))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - a provider that does not work here is left out
            print(f"{provider}: {str(error).splitlines()[0]}")
            continue
        theirs[provider] = time.perf_counter() - began
    session.stop()
    return {
        "events": events,
        "events_a_batch": size,
        "without_s": round(without, 2),
        "dedupe_s": round(ours, 2),
        "spark_s": {name: round(seconds, 2) for name, seconds in theirs.items()},
        "spark_to_dedupe": {name: round(seconds / ours, 2) for name, seconds in theirs.items()},
    }


def write_log(directory: Path, events: int) -> Path:
    from signoff.log import LogWriter
    from signoff.pipeline.model import LogSettings
    from signoff.sources.events import event_batch, piece

    writer = LogWriter(directory, LogSettings())
    for start in range(0, events, BATCH):
        writer.append(
            event_batch(
                piece([b"{}"] * BATCH, range(start, start + BATCH), {}),
                message_ids=[f"id-{n}" for n in range(start, start + BATCH)],
            )
        )
        writer.sync()
    writer.close()
    return directory


if __name__ == "__main__":
    main()
