"""Each analysis of a million alarms against pandas: `.venv/bin/python -m tests.alarms.million [--alarms N]`.

The results storage is made of the alarms by pandas, a share of them late; the jobs that ship then analyse all
of the time, and one day.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import pandas as pd

from signoff.engine.spark.cluster import Cluster
from signoff.jobs.run import load_job
from signoff_alarms import analyses, pipeline, reporting
from tests.alarms import expected

SIMULATION = {"late": 0.01}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--alarms", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="signoff-million-") as directory:
        home = analyses.Home(Path(directory) / "alarms")
        pipeline.write(pipeline.analysis(pipeline.embedded(pipeline.simulated(count=1), "1s")), home.path)
        (home.path / "out").mkdir()
        sent = expected.alarms(options.alarms, **SIMULATION)
        expected.store(sent, home.path / "out" / "results.db")
        last = sent.eventTime.max().normalize() + pd.Timedelta("1D")
        print(f"{len(sent):,} alarms, {int(sent.late.sum()):,} late, up to {last:%Y-%m-%d}")
        job = analyses.write(home, analyses.Analysis.PART_OF_DAY, home.settings())
        cluster = Cluster.start(load_job(job))
        try:
            for end in (f"{last:%Y-%m-%d}T00:00:00Z", "2021-05-02T00:00:00Z"):
                for name in analyses.Analysis:
                    began = time.monotonic()
                    period = reporting._period("2021-05-01T00:00:00Z", end)
                    out = home.path / "told"
                    (file,) = reporting.make(home, name, period, ["json"], out, spark=cluster.spark)
                    took = time.monotonic() - began
                    found = json.loads(file.read_text())["rows"]
                    due = expected.rows(name, sent, "2021-05-01T00:00:00Z", end)
                    compare(found, due)
                    print(f"{name:22} to {end[:10]}: {len(due):7,} rows, equal; {took:.1f} s", flush=True)
        finally:
            cluster.stop()


def compare(found: expected.Rows, due: expected.Rows) -> None:
    """Raises AssertionError where they are not equal."""
    assert len(found) == len(due), f"{len(found)} rows, not {len(due)}"
    in_order = [sorted(rows, key=lambda row: [str(value) for value in row.values()]) for rows in (found, due)]
    for row, wanted in zip(*in_order, strict=True):
        assert list(row) == list(wanted), (row, wanted)
        for name, value in wanted.items():
            if isinstance(value, float) and row[name] is not None:
                assert abs(row[name] - value) <= 1e-6 * abs(value) + 1e-12, (row, wanted)
            else:
                assert row[name] == value, (row, wanted)


if __name__ == "__main__":
    main()
