"""A text that was submitted is checked in a process of its own, which has what the run will have.

What is wrong is said as `signoff check` says it, with the line. The service itself reads no text that was
not accepted: one that is hostile, or makes Spark fail, costs this process, for a bounded time. It ends with
the service, by its standard input, and by an alarm of its own; its Java ends with it, by the same way.

    python -m signoff.service.checking FILE NAME SECONDS SECRETS [--spark]
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from signoff.errors import PipelineError, Problem, SignoffError
from signoff.private import make_private
from signoff.service.handed_secrets import handed_over, take

CHECK_S = 180.0
_AT_ONCE = 2
_TURN_S = 60.0
_GRACE_S = 10.0
"""The service ends a check when its time is up; this much later it ends by itself."""
_CANDIDATE = ".candidate.yaml"
"""No pipeline can be called that."""
_turns = threading.BoundedSemaphore(_AT_ONCE)


class TooMany(Exception):
    """Others are being checked; this one has not had its turn."""


@dataclass(frozen=True)
class Checked:
    """What was found."""

    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...] = ()


def check_text(
    place: Path,
    text: str,
    environ: Mapping[str, str],
    secrets: Mapping[str, str],
    *,
    spark: bool,
    within_s: float = CHECK_S,
) -> Checked:
    """Check a text as the pipeline of this directory. `spark`: also expressions, schemas and functions, which
    takes some seconds. Nothing that is there is changed."""
    if not _turns.acquire(timeout=_TURN_S):
        raise TooMany
    new = not place.exists()
    try:
        make_private(place)
        candidate = place / _CANDIDATE
        candidate.write_text(text, encoding="utf-8")
        try:
            with handed_over(secrets) as file:
                return _asked(candidate, place.name, environ, file, spark, within_s)
        finally:
            candidate.unlink(missing_ok=True)
    finally:
        _turns.release()
        if new:
            shutil.rmtree(place, ignore_errors=True)


def _asked(
    file: Path, name: str, environ: Mapping[str, str], secrets: int, spark: bool, within_s: float
) -> Checked:
    program = [
        sys.executable, "-m", "signoff.service.checking", file.name, name, str(within_s), str(secrets),
        *(["--spark"] if spark else []),
    ]  # fmt: skip
    process = subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        cwd=file.parent, env=dict(environ), start_new_session=True, pass_fds=(secrets,),
    )  # fmt: skip
    output = process.stdout
    assert process.stdin is not None and output is not None
    said: list[bytes] = []
    reader = threading.Thread(target=lambda: said.append(output.read()), daemon=True)
    try:
        # Not `communicate`, which would close its standard input: that says that the service is gone.
        reader.start()
        process.wait(within_s)
        reader.join(within_s)
        found: dict[str, Any] = json.loads(said[0] if said else b"")
    except (subprocess.TimeoutExpired, ValueError):
        message = f"the pipeline could not be checked within {within_s:g} s, or its check has crashed"
        return Checked((Problem("check-failed", message, "make it smaller, or try again", f"{name}.yaml"),))
    finally:
        with suppress(ProcessLookupError):  # Java, too
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join()
        process.stdin.close()
        output.close()
    return Checked(*(tuple(Problem(**each) for each in found[kind]) for kind in ("problems", "warnings")))


# -- in the process


def main(file: Path, name: str, within_s: float, secrets: int, spark: bool) -> None:
    from signoff.pipeline.secrets import redact

    _end_in_time(within_s)
    take(secrets)
    try:
        found = _check(file, name, spark)
    except PipelineError as error:
        found = Checked(tuple(error.problems))
    except SignoffError as error:
        found = Checked((Problem("check-failed", redact(str(error)), "", str(file)),))
    said = {
        "problems": [asdict(_placed(each, file, name)) for each in found.problems],
        "warnings": [asdict(_placed(each, file, name)) for each in found.warnings],
    }
    sys.stdout.write(json.dumps(said))


def _end_in_time(within_s: float) -> None:
    """Whatever becomes of the service, and of this process."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, within_s + _GRACE_S)  # the system's, also where Python is stuck
    threading.Thread(target=_end_with_service, daemon=True).start()


def _end_with_service() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


def _check(file: Path, name: str, spark: bool) -> Checked:
    from signoff.catalog import default
    from signoff.pipeline.load import load, refuse_other_files
    from signoff.pipeline.overlays import Layers, text_of

    written = text_of(file.read_text(encoding="utf-8"), str(file))
    refuse_other_files(written)
    graph = load(file, default(), layers=Layers())
    if graph.is_job:
        message, hint = "this is a job: it reads tables, and ends", "run it with: signoff jobs run FILE"
        return Checked((Problem("is-a-job", message, hint, str(file)),))
    if graph.name != name:
        message = f'the pipeline is called "{graph.name}", and was submitted as "{name}"'
        return Checked(
            (Problem("not-hosted", message, "use one name", str(file), written.lines.get(("name",), 0)),)
        )
    if wrong := _wrong_with_state(str(written.value.get("state", "")), graph.state, file):
        message, hint = wrong
        line = written.lines.get(("state",), 0)
        return Checked((Problem("not-hosted", message, hint, str(file), line),))
    problems: list[Problem] = []
    if spark:
        from signoff.engine.spark_check import check

        problems = list(check(graph))
    return Checked(tuple(problems), graph.warnings)


def _wrong_with_state(written: str, state: Path, file: Path) -> tuple[str, str] | None:
    """The service looks at the state of a pipeline: it has to find it as the run does, without files and
    secrets; and what is in the directory of another pipeline goes when that is deleted."""
    from signoff.pipeline.variables import REFERENCE

    if any(found["file"] or found["secret"] for found in REFERENCE.finditer(written)):
        message = '"state" holds a reference to a file or a secret, which the service does not follow'
        return message, "write the directory itself"
    own = file.parent.resolve()
    if state.is_relative_to(own.parent) and not state.is_relative_to(own):
        message = '"state" is in the directory of other pipelines of the service'
        return message, "leave it out, or name a directory elsewhere"
    return None


def _placed(problem: Problem, file: Path, name: str) -> Problem:
    """As if the file had the name of the pipeline; the place of a file does not matter to who submits one."""
    shown = f"{name}.yaml"
    texts = [text.replace(str(file.absolute()), shown).replace(file.name, shown) for text in (
        problem.message, problem.hint, problem.file)]  # fmt: skip
    return replace(problem, message=texts[0], hint=texts[1], file=texts[2], line=int(problem.line))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), "--spark" in sys.argv[5:])
