"""The run's log on standard error: plain lines for people, JSON lines for services. Never a secret."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Literal, TextIO

from signoff.pipeline.secrets import redact
from signoff.terminal import harmless

Format = Literal["text", "json"]


def set_up_logging(style: Format, level: int = logging.INFO) -> None:
    """Send everything Signoff logs to standard error in one style."""
    handler = _Stderr()
    handler.setFormatter(_Json() if style == "json" else _Text())
    root = logging.getLogger("signoff")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False


class _Stderr(logging.StreamHandler[TextIO]):
    """Standard error as it is at the time: while a table is drawn there, lines go above it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record), sys.stderr)


def text_line(created: float, level: int, message: str) -> str:
    """A line of the log for people: its time, its level, and what it says."""
    at = time.strftime("%H:%M:%S", time.localtime(created))
    return redact(f"{at} {logging.getLevelName(level).lower():7} {message}")


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return text_line(record.created, record.levelno, _message(self, record))


class _Json(logging.Formatter):
    """`extra={"fields": …}` of a record are fields of the line, for who would not take its sentence apart."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "at": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(_message(self, record)),
        }
        return json.dumps(line | getattr(record, "fields", {}))


def _message(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    text = record.getMessage()
    return f"{text}\n{formatter.formatException(record.exc_info)}" if record.exc_info else text
