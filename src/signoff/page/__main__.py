"""`python -m signoff.page`: the page of a run as a process of its own, under `signoff run`.

Its job is one line of JSON on standard input, whose end means that the run is over. The socket comes from the
run, so that a page that is started again is where it was.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from signoff.errors import SignoffError
from signoff.logs import set_up_logging
from signoff.pipeline.overlays import Layers
from signoff.pipeline.secrets import redact, register_secret

logger = logging.getLogger("signoff.page")

_NICE = 10
"""Of less urgency than all else that a run does."""
_MOST_CONNECTIONS, _MOST_PER_CLIENT = 512, 128
_REQUEST_S = 30.0
"""How long a request may take to arrive."""
_IDLE_S = 10
_BAD_PIPELINE = 2


def main() -> int:
    if not (line := sys.stdin.readline()):
        return 0  # the run has ended before it had a job for us
    job = json.loads(line)
    set_up_logging(job["log_format"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICE)
    threading.Thread(target=_end_with_run, daemon=True).start()
    if job["token"]:
        register_secret(job["token"])
    try:
        serve(job)
    except SignoffError as error:
        logger.error("%s", redact(str(error)))
        return _BAD_PIPELINE
    return 0


def serve(job: dict[str, Any]) -> None:
    import uvicorn

    from signoff.catalog import default
    from signoff.page.standalone import page_app
    from signoff.page.watched import WatchedPipeline
    from signoff.pipeline.load import load
    from signoff.sources.http.connections import Guard as Connections

    graph = load(Path(job["file"]), default(), layers=Layers.from_json(job["layers"]), texts=job["texts"])
    bound = socket.socket(fileno=job["fd"])
    connections = Connections(_MOST_CONNECTIONS, _MOST_PER_CLIENT, job.get("request_s", _REQUEST_S))
    with WatchedPipeline(graph) as pipeline:
        cookie = f"signoff-{bound.getsockname()[1]}"
        app = page_app(pipeline, token=job["token"], names=job["names"], cookie=cookie)
        config = uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, proxy_headers=False,
            lifespan="off", ws="none", timeout_keep_alive=_IDLE_S, timeout_graceful_shutdown=1,
            http=connections.protocol(),
        )  # fmt: skip
        uvicorn.Server(config).run(sockets=[bound])


def _end_with_run() -> None:
    """The run is over, or gone."""
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
