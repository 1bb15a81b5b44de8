"""`make powerloss`: the power is cut at many moments of recorded runs of every kind of pipeline.

For each kind a run is recorded on a disk that knows what was fsynced. Then, for each of `--cuts` random
moments, that disk is rebuilt as it was, less what was not synced (all of it, or a random part), and the
pipeline is run on what is left. Nothing may be missing, nothing twice, and the account must balance.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from signoff.engine.spark import session
from signoff.pipeline.settings import SparkSettings
from tests.powerloss.mount import missing
from tests.powerloss.scene import KINDS, Scene
from tests.promises.product import Inline


def main() -> int:
    parser = argparse.ArgumentParser(prog="make powerloss", description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--cuts", type=int, default=20, help="moments of each recorded run")
    parser.add_argument("--files", type=int, default=12)
    parser.add_argument("--events", type=int, default=20, help="of each file")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args()
    if lacks := missing():
        print(f"not possible here: {lacks}", file=sys.stderr)
        return 2
    print(f"seed {given.seed}")
    with tempfile.TemporaryDirectory(prefix="powerloss-") as folder:
        spark = _session(Path(folder))
        failed = sum(_one_kind(kind, given, Path(folder), spark) for kind in given.kinds)
    print("nothing lost, nothing twice" if not failed else f"{failed} cuts went wrong")
    return 1 if failed else 0


def _one_kind(kind: str, given: argparse.Namespace, folder: Path, spark: Any) -> int:
    chance = random.Random(f"{given.seed} {kind}")
    scene = Scene(kind, folder, lambda directory: Inline(directory, spark))
    began = time.monotonic()
    recorded = scene.record(scene.prepared(), given.files, given.events)
    syncs = sum(change[0] == "sync" for change in recorded.changes)
    took = time.monotonic() - began
    print(f"{kind}: recorded {len(recorded.changes)} changes, {syncs} of them syncs, in {took:.0f} s")
    failed = 0
    for cut in range(given.cuts):
        place = recorded.cut(chance)
        lucky = None if cut % 2 == 0 else chance
        how = "all that was not synced is lost" if lucky is None else "a random part of it is"
        why = f"{kind}, cut {cut} after change {place}, {how}"
        disk = recorded.disk_after(place, lucky)
        began = time.monotonic()
        try:
            scene.after(disk, recorded.given(place), why)
        except Exception as error:  # noqa: BLE001 - the other cuts are worth a try
            failed += 1
            print(f"FAILED {why}: {type(error).__name__}: {error}", flush=True)
        else:
            print(f"{why}: fine, {time.monotonic() - began:.1f} s", flush=True)
    return failed


def _session(folder: Path) -> Any:
    settings = SparkSettings(
        master="local[2]", config={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    )
    root = Path(__file__).parents[2]
    return session.start_session("powerloss", settings, log_file=folder / "spark.log", python_path=root)


if __name__ == "__main__":
    sys.exit(main())
