"""`python -m signoff.engine`: the engine as a process of its own, under `signoff run`.

Its job is one line of JSON on standard input; the end of that input means that the run is gone, and the
engine ends at once. SIGTERM means: finish what is in flight, then end.

Exit codes: 0 stopped as asked; 2 the pipeline is wrong; 3 it gave up on a sink and events are still
owed; anything else is a crash, after which the run starts it again.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.engine import Engine
from signoff.engine.spark.cluster import NoExecutors
from signoff.errors import PipelineError, PluginError, SignoffError
from signoff.ledger.engine_lock import engine_lock
from signoff.logs import set_up_logging
from signoff.pipeline.file_texts import changed_since
from signoff.pipeline.graph import Graph
from signoff.pipeline.overlays import Layers
from signoff.pipeline.secrets import redact
from signoff.pipeline.started_jobs import jobs_started
from signoff.private import make_state

logger = logging.getLogger("signoff.engine")

GAVE_UP = 3


def main() -> int:
    if not (line := sys.stdin.readline()):
        return 0  # the run has ended before it had a job for us
    job = json.loads(line)
    set_up_logging(job["log_format"])
    control = Interrupts(patience_s=job["patience_s"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: control.stop(job["drain_s"]))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        return run(graph_of(job), control)
    except (PipelineError, PluginError) as error:
        sys.stderr.write(f"{redact(str(error))}\n")
        return 2
    except NoExecutors as error:
        logger.error("%s", redact(str(error)))
        return GAVE_UP if control.patience_s is not None else 1
    except SignoffError as error:
        logger.error("%s", redact(str(error)))
        return 1


def graph_of(job: Mapping[str, Any]) -> Graph:
    """The pipeline the run was started with, whatever stands in its files by now."""
    from signoff.catalog import default
    from signoff.pipeline.load import load

    graph = load(Path(job["file"]), default(), layers=Layers.from_json(job["layers"]), texts=job["texts"])
    jobs = {str((graph.base / config.job).absolute()) for config in jobs_started(graph).values()}
    for file in changed_since({place: text for place, text in job["texts"].items() if place not in jobs}):
        logger.warning(
            "%s was changed after the run was started; the run goes on with the pipeline as it was then, "
            "and the next one takes the change", file,
        )  # fmt: skip
    return graph


def run(graph: Graph, control: Interrupts) -> int:
    make_state(graph.state)
    with engine_lock(graph.state):
        engine = Engine(graph, control)
        try:
            gave_up = engine.run()
        finally:
            engine.close()
    if gave_up is not None:
        logger.error("%s", redact(gave_up))
        return GAVE_UP
    return 0


def _end_with_parent() -> None:
    """Nobody is there to restart or to stop the engine any more: the next run goes on from the ledger."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
