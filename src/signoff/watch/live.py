"""A run that is shown while it goes on, for `signoff run` and for `Pipeline.run`.

The engine's process is started first: it loads Spark's Python side while the pipeline is read here. SIGTERM
and Ctrl-C stop the run when what is in flight is finished; a second one ends it at once.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from signoff.engine.children import Child

if TYPE_CHECKING:
    from signoff.engine.run_options import RunOptions
    from signoff.pipeline.graph import Graph

_INTERRUPTED = 130


def run_live(load: Callable[[], Graph], file: Path, options: RunOptions, *, quiet: bool) -> int:
    """Load a pipeline and run it to its end, shown on standard error; returns the exit code."""
    engine = Child("the engine", "signoff.engine")
    engine.prepare()
    try:
        graph = load()
        from signoff.engine import class_archive
        from signoff.engine.supervise import Run
        from signoff.watch.progress import Progress

        run = Run(graph, options, file, engine)

        def stop(*_: object) -> None:
            if run.stop_requested:
                sys.exit(_INTERRUPTED)
            run.stop_requested = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            with Progress(quiet=quiet or options.log_format == "json") as progress:
                code = run.execute(progress.tick)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        class_archive.make_later()
        return code
    finally:
        engine.kill()
