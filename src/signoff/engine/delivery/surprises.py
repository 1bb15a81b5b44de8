"""What a sink's own code raises by surprise, such as a KeyError: where it came from, for who has to mend it.

It counts as transient, and the batch's warning names it in one line; nobody finds it by that. The
task notes the traceback, since it has the stack, and the driver logs it: once per sink and type of error, not
with each retry.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field

from signoff.engine.plan.task_report import ReportKind, TaskReport
from signoff.pipeline.secrets import redact

logger = logging.getLogger(__name__)

_FRAMES = 20
_LENGTH = 6000
"""Of the end of a traceback, where the error and the place are that raised it."""


def surprise(sink: str, error: Exception) -> TaskReport:
    """The error as the task reports it: masked before it is cut."""
    text = redact("".join(traceback.format_exception(error, limit=-_FRAMES)).rstrip())
    if len(text) > _LENGTH:
        text = f"…{text[-_LENGTH:]}"
    return TaskReport(sink, ReportKind.SURPRISE, child=type(error).__name__, text=text)


@dataclass
class Surprises:
    """Those of one source's batches. Several threads may report."""

    _logged: set[tuple[str, str]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, results: Sequence[TaskReport]) -> list[TaskReport]:
        """Log those that are new; returns the other reports."""
        for result in results:
            if result.kind == ReportKind.SURPRISE and self._is_new((result.name, result.child or "")):
                logger.warning(
                    'sink "%s" raised an error of its own, %s, which counts as transient; said once: %s',
                    result.name, result.child, f"\n{result.text}",
                )  # fmt: skip
        return [result for result in results if result.kind != ReportKind.SURPRISE]

    def _is_new(self, key: tuple[str, str]) -> bool:
        with self._lock:
            known = key in self._logged
            self._logged.add(key)
        return not known
