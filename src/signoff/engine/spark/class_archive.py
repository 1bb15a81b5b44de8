"""A class-data archive for Spark's Java: half of what a start costs is loading the same 15,000 classes.

Java can keep classes as it has laid them out in memory, in a file that the next Java maps. The file is made
once for a Java and a set of Spark's jars, by a small run of its own at the lowest priority after a command
has ended (`make_later`), or now: `python -m signoff.engine.spark.class_archive`, for an image.

Invariants:
- Nothing depends on it. Where it cannot be made, read or used, everything works as without, only slower.
- It appears whole, under a name that says what it was made of; another Java or other jars have another name.
- It is code: a file that anybody else could have written, or put another in the place of, is not used.
- One process makes it at a time; one that died leaves nothing that would be used.
- Whoever says by himself what Java does with archives (SPARK_SUBMIT_OPTS, `spark.driver.extraJavaOptions`)
  is left alone. SIGNOFF_CLASS_ARCHIVE=off does without.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from signoff.durable import sync_directory, sync_file
from signoff.engine.spark.java import find_java
from signoff.errors import EngineError

SWITCH = "SIGNOFF_CLASS_ARCHIVE"
SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"
_DECIDED = re.compile(r"-XX:(Shared|Archive|\+?AutoCreateShared)|-Xshare")
_QUIET = "-Xlog:cds*=off -Xlog:class+path=off"
"""An archive that does not fit is no reason to say anything."""
_DAY_S = 86_400.0
_UNUSED_S = 30 * _DAY_S
_MAKING_S = 600.0
_OTHERS_WRITE = 0o022
_SIGNOFF = (sys.executable, "-c", "from signoff.cli import main; main()")
_PIPELINE = """\
name: archive
sources:
  incoming: {type: files, path: "./in/*.jsonl"}
transforms:
  parsed: {type: parse_json, input: incoming, schema: "n INT, name STRING, at TIMESTAMP"}
  some: {type: filter, input: parsed, where: "n > 1"}
  named: {type: select, input: some, columns: {n: n, name: upper(name)}}
sinks:
  lines: {type: files, input: named, path: ./out/lines}
  columns: {type: files, input: parsed, path: ./out/columns, format: parquet}
"""


def use(given: str) -> str:
    """The options with which Java uses the archive, beside the user's own; '' where there is none."""
    if _decided(given):
        return ""
    place = archive()
    if place is None or not _is_safe(place.parent) or not _is_ours(place):
        return ""
    with suppress(OSError):
        if time.time() - place.stat().st_mtime > _DAY_S:
            os.utime(place)  # when it was last of use
    return f"-XX:SharedArchiveFile={place} {_QUIET}"


def archive() -> Path | None:
    """Where the archive of this Java and these jars is, or would be; None where there can be none."""
    try:
        home, jars = find_java(), _jars()
        if jars is None:
            return None
        release = home.resolve() / "release"
        made_of = [str(home.resolve()), release.read_text() if release.exists() else ""]
        for jar in sorted(jars.iterdir()):
            status = jar.stat()
            made_of.append(f"{jar} {status.st_size} {status.st_mtime_ns}")
        digest = hashlib.sha256("\n".join(made_of).encode()).hexdigest()
        place = cache() / f"spark-{digest[:16]}.jsa"
        return None if re.search(r"[\s\"']", str(place)) else place  # options are divided at blanks
    except (EngineError, OSError, RuntimeError):  # no Java; no home directory
        return None


def cache() -> Path:
    """The directory of what is ours in the user's cache."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if given.startswith("/") else Path.home() / ".cache") / "signoff"


def make_later() -> None:
    """Have the archive made by a process that outlives this one; at once when there is nothing to do."""
    if _decided("") or (place := archive()) is None or place.exists() or _failed_lately(place):
        return
    with suppress(OSError):
        subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )


def make() -> Path | None:
    """Make the archive unless it is there or being made; returns where it is, or None."""
    place = archive()
    if place is None or (_is_safe(place.parent) and _is_ours(place)):
        return place
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_safe(place.parent):
            return None
        with _alone(place) as ours:
            if not ours:
                return None
            _make(place)
            _remove_unused(place.parent)
    except (OSError, subprocess.SubprocessError):
        with suppress(OSError):
            place.with_suffix(".failed").touch()
    return place if _is_ours(place) else None


def _make(place: Path) -> None:
    """Run a small pipeline, whose Java writes down at its end what it has loaded."""
    with tempfile.TemporaryDirectory(prefix="making-", dir=place.parent) as name:
        directory = Path(name)
        made = directory / "made.jsa"
        (directory / "in").mkdir()
        lines = [f'{{"n": {n}, "name": "a", "at": "2026-01-01 00:00:00"}}' for n in range(20)]
        (directory / "in" / "events.jsonl").write_text("\n".join(lines) + "\n")
        file = directory / "pipeline.yaml"
        file.write_text(_PIPELINE)
        options = f"{os.environ.get(SUBMIT_OPTIONS, '')} -XX:ArchiveClassesAtExit={made} -Xlog:disable"
        _run([*_SIGNOFF, "run", "--once", "--quiet", str(file)], options.strip())
        if not made.exists():
            raise OSError("this Java makes no archive")
        sync_file(made)
        made.rename(place)
        sync_directory(place.parent)


def _run(command: list[str], options: str) -> None:
    """Run to the end of the last process: Java, which has inherited the pipe, is behind the run."""
    environment = {**os.environ, SUBMIT_OPTIONS: options}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    )
    try:
        process.communicate(timeout=_MAKING_S)
    finally:
        process.kill()


@contextmanager
def _alone(place: Path) -> Iterator[bool]:
    """Whether nobody else is making it. What one that died has left is removed."""
    with open(place.parent / "making.lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        for left in place.parent.glob("making-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield True


def _remove_unused(directory: Path) -> None:
    for old in directory.glob("spark-*"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > _UNUSED_S:
                old.unlink()


def _decided(given: str) -> bool:
    """Whether the user has said what is to be done about archives."""
    return (
        os.environ.get(SWITCH, "").lower() in ("off", "0", "no", "false")
        or _DECIDED.search(f"{given} {os.environ.get(SUBMIT_OPTIONS, '')}") is not None
    )


def _failed_lately(place: Path) -> bool:
    try:
        return time.time() - place.with_suffix(".failed").stat().st_mtime < _DAY_S
    except OSError:
        return False


def _is_ours(path: Path) -> bool:
    """Whether it is there, and nobody but this user (or root) can have written it."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & _OTHERS_WRITE and not path.is_symlink()


def _is_safe(directory: Path) -> bool:
    """Whether nobody else can have written it, or put another one in its place: that needs only a directory
    above it. In one with the sticky bit, as /tmp, everybody may only replace what is his own."""
    above = {*directory.parents, *directory.resolve().parents}
    return _is_ours(directory) and all(_keeps_its_entries(each) for each in above)


def _keeps_its_entries(directory: Path) -> bool:
    try:
        status = directory.lstat()
    except OSError:
        return False
    if status.st_uid not in (os.getuid(), 0):
        return False
    writable = status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX
    return stat.S_ISLNK(status.st_mode) or not writable  # of a link the mode says nothing


def _jars() -> Path | None:
    """Spark's jars, found without loading PySpark."""
    home = os.environ.get("SPARK_HOME")
    if home is None:
        found = find_spec("pyspark")
        if found is None or not found.submodule_search_locations:
            return None
        home = found.submodule_search_locations[0]
    jars = Path(home) / "jars"
    return jars if jars.is_dir() else None


def main() -> int:
    """Make it, in the background of everything else."""
    with suppress(OSError, AttributeError):
        os.nice(19)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    return 0 if make() else 1


if __name__ == "__main__":
    sys.exit(main())
