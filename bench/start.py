"""How long commands take to start, side by side with a plain PySpark program that does the same.

    help            signoff --help
    check           signoff check of a pipeline without a question to Spark
    check_sql       signoff check of one with a schema and an expression
    run_once        signoff run --once of 40 lines: parsed, filtered, written as JSON lines
    plain           the same in PySpark: readStream.text, from_json, where, foreachBatch, availableNow

Every variant is run in turn, several rounds; the figure is the median of its wall times. Java gets a
class-data archive, which is made first; with --without-archive it gets none. A busy machine makes all of them
slower, and the ratios less certain.

    .venv/bin/python bench/start.py [--rounds 5] [--only NAMES] [--without-archive] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from signoff.engine.spark import class_archive
from signoff.engine.spark.java import find_java

SIGNOFF = str(Path(sys.executable).with_name("signoff"))
WITH_SQL = """\
name: started
sources:
  incoming: {type: files, path: ./in/*.jsonl}
transforms:
  parsed: {type: parse_json, input: incoming, schema: "n BIGINT, name STRING"}
  some: {type: filter, input: parsed, where: n > 1}
sinks:
  out: {type: files, input: some, path: ./out}
"""
WITHOUT = """\
name: started
sources:
  incoming: {type: files, path: ./in/*.jsonl}
sinks:
  out: {type: files, input: incoming, path: ./out}
"""
PLAIN = """\
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.readStream.schema("value STRING").text(sys.argv[1] + "/in")
parsed = rows.selectExpr("from_json(value, 'n BIGINT, name STRING') AS v").select("v.*").where("n > 1")


def write(batch, number):
    batch.write.mode("append").json(sys.argv[1] + "/out")


stream = parsed.writeStream.foreachBatch(write).option("checkpointLocation", sys.argv[1] + "/checkpoint")
stream.trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--without-archive", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    environment = {**os.environ, "JAVA_HOME": str(find_java())}
    if given.without_archive:
        environment[class_archive.SWITCH] = "off"
    else:
        print(f"class-data archive: {class_archive.make()}", flush=True)
    chosen = given.only.split(",") if given.only else list(VARIANTS)
    walls: dict[str, list[float]] = {name: [] for name in chosen}
    for number in range(given.rounds):
        for name in chosen:
            with tempfile.TemporaryDirectory(prefix="bench-start-") as directory:
                wall = _measured(VARIANTS[name], Path(directory), environment)
            walls[name].append(wall)
            print(f"round {number + 1}: {name:10} {wall:6.2f} s", flush=True)
    result = _report(walls)
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


def _command(*arguments: str, pipeline: str = "") -> Callable[[Path], list[str]]:
    def made(directory: Path) -> list[str]:
        file = directory / "pipeline.yaml"
        file.write_text(pipeline)
        return [SIGNOFF, *arguments, *([str(file)] if pipeline else [])]

    return made


def _plain(directory: Path) -> list[str]:
    (directory / "plain.py").write_text(PLAIN)
    return [sys.executable, str(directory / "plain.py"), str(directory)]


VARIANTS: dict[str, Callable[[Path], list[str]]] = {
    "help": _command("--help"),
    "check": _command("check", pipeline=WITHOUT),
    "check_sql": _command("check", pipeline=WITH_SQL),
    "run_once": _command("run", "--once", pipeline=WITH_SQL),
    "plain": _plain,
}


def _measured(command: Callable[[Path], list[str]], directory: Path, environment: dict[str, str]) -> float:
    (directory / "in").mkdir()
    lines = (json.dumps({"n": n, "name": f"name {n}"}) for n in range(40))
    (directory / "in" / "a.jsonl").write_text("\n".join(lines) + "\n")
    arguments, began = command(directory), time.monotonic()
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment)
    wall = time.monotonic() - began
    if done.returncode:
        sys.exit(f"{done.args}: {done.returncode}\n{done.stdout}{done.stderr}")
    return wall


def _report(walls: dict[str, list[float]]) -> dict[str, object]:
    medians = {name: statistics.median(found) for name, found in walls.items()}
    print(f"\n{'variant':10} {'median':>8} {'fastest':>8}  against plain")
    for name, found in walls.items():
        ratio = f"{medians[name] / medians['plain']:.2f}" if "plain" in medians else "-"
        print(f"{name:10} {medians[name]:6.2f} s {min(found):6.2f} s  {ratio}")
    return {"median_s": medians, "wall_s": walls}


if __name__ == "__main__":
    main()
