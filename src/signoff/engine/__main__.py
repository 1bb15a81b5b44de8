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
from pathlib import Path

from signoff.engine.cluster import NoExecutors
from signoff.engine.control import Control
from signoff.engine.engine import Engine
from signoff.engine.lock import engine_lock
from signoff.errors import PipelineError, SignoffError
from signoff.pipeline.layers import Layers
from signoff.pipeline.secrets import redact
from signoff.private import make_state
from signoff.watch.logs import set_up_logging

logger = logging.getLogger("signoff.engine")

GAVE_UP = 3


def main() -> int:
    if not (line := sys.stdin.readline()):
        return 0  # the run has ended before it had a job for us
    job = json.loads(line)
    set_up_logging(job["log_format"])
    control = Control(patience_s=job["patience_s"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: control.stop(job["drain_s"]))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        return run(Path(job["file"]), control, Layers.from_json(job["layers"]))
    except PipelineError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except NoExecutors as error:
        logger.error("%s", redact(str(error)))
        return GAVE_UP if control.patience_s is not None else 1
    except SignoffError as error:
        logger.error("%s", redact(str(error)))
        return 1


def run(file: Path, control: Control, layers: Layers) -> int:
    from signoff.catalog import default
    from signoff.pipeline.load import load

    graph = load(file, default(), layers=layers)
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
