"""The page of a run as one of its processes (docs/decisions/0028): the run holds its socket and starts it
again.

Whatever becomes of the page, the run goes on: it is not asked for anything, and no event waits for it.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Mapping
from typing import Any

from signoff.errors import SignoffError
from signoff.run.options import PageOptions
from signoff.run.processes import Child

logger = logging.getLogger(__name__)


class PageProcess:
    """Listens at once, so that an address that is taken is known before anything begins."""

    def __init__(self, options: PageOptions, pipeline: Mapping[str, Any]) -> None:
        """`pipeline`: the job of the engine, which says how the pipeline is loaded."""
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((options.host, options.port))
            self._socket.listen(128)
        except OSError as error:
            self._socket.close()
            raise SignoffError(
                f"[page-address] the page cannot be served at {options.host}:{options.port}: {error}"
            ) from error
        page = {"fd": self._socket.fileno(), "token": options.token, "names": options.names}
        job = json.dumps({**pipeline, **page}).encode() + b"\n"
        self._child = Child("the page", "signoff.page", job, (self._socket.fileno(),))
        host = f"[{options.host}]" if ":" in options.host else options.host
        self.address = f"http://{host}:{self._socket.getsockname()[1]}/"

    def start(self) -> None:
        self._child.start()
        logger.info("the page is at %s", self.address)

    def tend(self) -> None:
        """Start it again if it has ended."""
        if self._child.exit_code() is not None:
            self._child.restart_when_due()

    @property
    def pid(self) -> int | None:
        """None while it is not up."""
        return self._child.pid if self._child.exit_code() is None else None

    def close(self) -> None:
        self._child.release()
        self._child.kill()
        self._socket.close()
