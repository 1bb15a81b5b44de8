"""Spans on their way to a collector: a queue of a bounded length, and a thread that empties it.

The SDK's own processor says nothing of what it drops, and its end waits as long as the collector likes.
Requests, their retries and the protocol are the SDK's.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from signoff.errors import SignoffError
from signoff.pipeline.trace_settings import TraceSettings
from signoff.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

logger = logging.getLogger(__name__)

_MOST = 4096
"""Spans that wait."""
_AT_ONCE = 512
_EVERY_S = 1.0
_TIMEOUT_S = 5.0
_END_S = 2.0
"""How long the end of a process is held up at most."""
_SAY_S = 60.0


def require_sdk() -> None:
    """Raises SignoffError where the extra is missing."""
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise SignoffError('[missing-extra] traces need OpenTelemetry: pip install "signoff[traces]"')


class Exporter:
    """Sends the spans of one process. `put` may be called by any thread, and never waits."""

    def __init__(self, settings: TraceSettings, pipeline: str, process: str) -> None:
        require_sdk()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        for name in ("opentelemetry", "urllib3"):  # it says at each try what we say once
            logging.getLogger(name).setLevel(logging.CRITICAL)
        name = os.environ.get("OTEL_SERVICE_NAME") or pipeline
        told = {"service.name": name, "signoff.pipeline": pipeline, "signoff.process": process}
        self.resource, self.scope = Resource.create(told), InstrumentationScope("signoff", __version__)
        headers = {key: value.get_secret_value() for key, value in settings.headers.items()}
        self._exporter = OTLPSpanExporter(
            endpoint=_traces_at(settings.endpoint), headers=headers or None, timeout=_TIMEOUT_S
        )
        self._waiting: deque[ReadableSpan] = deque()
        self._ended = threading.Event()
        self._more = threading.Event()
        self.sent = self.dropped = self._in_hand = 0
        self._given_up = False
        self._said, self._said_at = 0, 0.0
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, spans: Iterable[ReadableSpan]) -> None:
        for span in spans:
            if len(self._waiting) >= _MOST:
                self.dropped += 1
            else:
                self._waiting.append(span)
        if len(self._waiting) >= _AT_ONCE:
            self._more.set()

    def close(self) -> None:
        """Send what waits, if that is soon done."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._more.set()
        self._thread.join(_END_S)
        atexit.unregister(self.close)
        self._given_up = True
        self.dropped += self._in_hand + len(self._waiting)
        self._say(last_word=True)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._more.wait(_EVERY_S)
            self._more.clear()
            self._send()
            self._say()
        self._send()

    def _send(self) -> None:
        while self._waiting:
            some = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
            self._in_hand = len(some)
            taken = self._taken(some)
            if self._given_up:
                return  # they are counted
            self._in_hand = 0
            if not taken:
                self.dropped += len(some)
                return  # the next ones in a while: nobody listens now
            self.sent += len(some)

    def _taken(self, spans: list[ReadableSpan]) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            return bool(self._exporter.export(spans) == SpanExportResult.SUCCESS)
        except Exception:
            logger.debug("spans were not sent", exc_info=True)
            return False

    def _say(self, *, last_word: bool = False) -> None:
        now = time.monotonic()
        if self.dropped > self._said and (last_word or now - self._said_at > _SAY_S):
            logger.warning(
                "traces: %d spans were dropped (%d sent): the collector does not take them, or not so many; "
                "the events themselves are as they should be", self.dropped, self.sent,
            )  # fmt: skip
            self._said, self._said_at = self.dropped, now


def _traces_at(endpoint: str | None) -> str | None:
    """Where traces are sent to, at a collector; None: as the variables say."""
    if endpoint is None or endpoint.rstrip("/").endswith("/v1/traces"):
        return endpoint
    return endpoint.rstrip("/") + "/v1/traces"


_shared: dict[tuple[str, str], Exporter] = {}


def shared_exporter(settings: TraceSettings, pipeline: str, process: str) -> Exporter:
    """The one of this process; made when it is first asked for."""
    if (known := _shared.get((pipeline, process))) is None:
        known = _shared[pipeline, process] = Exporter(settings, pipeline, process)
    return known


def close_shared(pipeline: str, process: str) -> None:
    """Send what waits, if anything was ever to be sent."""
    if (known := _shared.pop((pipeline, process), None)) is not None:
        known.close()
