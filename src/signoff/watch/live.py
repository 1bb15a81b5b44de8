"""A run that is shown while it goes on, for `signoff run` and for `Pipeline.run`.

The engine's process is started first: it loads Spark's Python side while the pipeline is read here. SIGTERM
and Ctrl-C stop the run when what is in flight is finished; a second one ends it at once.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from signoff.errors import PipelineError, Problem
from signoff.run.processes import Child

if TYPE_CHECKING:
    from signoff.pipeline.graph import Graph
    from signoff.run.options import RunOptions
    from signoff.run.supervisor import Run

_INTERRUPTED = 130


def run_live(load: Callable[[], Graph], file: Path, options: RunOptions, *, quiet: bool) -> int:
    """Load a pipeline and run it to its end, shown on standard error; returns the exit code."""
    engine = Child("the engine", "signoff.engine")
    engine.prepare()
    try:
        graph = load()
        if graph.is_job:
            message, hint = "this is a job: it reads tables, and ends", f"signoff jobs run {file.name}"
            raise PipelineError([Problem("is-a-job", message, hint, graph.file)])
        from signoff.engine.spark import class_archive
        from signoff.run.supervisor import Run
        from signoff.watch.progress import Progress

        run = Run(graph, options, file, engine)

        def stop(*_: object) -> None:
            if run.stop_requested:
                sys.exit(_INTERRUPTED)
            run.stop_requested = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            with (
                _metrics(run, options),
                Progress(quiet=quiet, logged=options.log_format == "json") as progress,
            ):
                code = run.execute(progress.tick)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        class_archive.make_later()
        return code
    finally:
        engine.kill()


def _metrics(run: Run, options: RunOptions) -> AbstractContextManager[object]:
    """The server of the run's metrics, if they are asked for."""
    if options.metrics is None:
        return nullcontext()
    from signoff.watch.metrics_server import Address, serve_metrics

    return serve_metrics(run.graph, lambda: run.processes, Address.parse(options.metrics))
