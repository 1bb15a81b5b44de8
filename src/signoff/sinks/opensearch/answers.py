"""What the answer to a `_bulk` request means for its rows.

A status of success holds an answer for each document. What is said there of a document is

    taken        2xx; or 409, where that says that it is there already, or a newer one
    permanent    400: it does not fit the mapping, its index cannot have this name, …; an ingest pipeline
                 fails it
    transient    all else: 429 and 5xx (queues, shards, disks above their watermark), 403 (a block, a
                 permission), 404 (no such index, and none is made); and what has status 400 but is no row's
                 fault (`_CAN_PASS`)

Any other status is about the request. 413 and OpenSearch's own 400 may be the fault of one of its rows, and
it is repeated in halves; all else concerns every row, and none for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from signoff.bounded_http import Reply
from signoff.pipeline.secrets import excerpt

_SHOWN = 300
_CAN_PASS = (
    ("index_closed_exception", ""),
    ("validation_exception", ""),  # the cluster has as many shards as it may have
    ("illegal_argument_exception", "pipeline with id ["),
    ("illegal_argument_exception", "no write index is defined for alias"),
    ("illegal_argument_exception", "only write ops with an op_type of create are allowed in data streams"),
)
"""Errors with status 400 that somebody puts right at the server or in the pipeline: by type and beginning."""
_ROWS_FAULT = frozenset({"fail_processor_exception"})
"""Errors with status 500 that come again whenever the row does."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A row that was not taken."""

    reason: str
    transient: bool


def of_items(answer: Reply, rows: int, *, conflicts_are_taken: bool) -> Sequence[tuple[int, Failed]]:
    """The rows, by their place in the request, that were not taken. Raises ValueError if the answer does not
    say so of each."""
    if not answer.whole:
        raise ValueError(f"the answer breaks off: {answer.trouble or 'it is too long'}")
    found = orjson.loads(answer.body)
    items = found.get("items") if isinstance(found, dict) else None
    if not isinstance(items, list) or len(items) != rows or not isinstance(found.get("errors"), bool):
        raise ValueError(f"the answer is none of OpenSearch: {_text(answer)}")
    failed = []
    for place, item in enumerate(items):
        said = next(iter(item.values())) if isinstance(item, dict) and item else None
        said = said if isinstance(said, dict) else {}
        status = said.get("status")
        if not isinstance(status, int):
            raise ValueError(f"the answer says nothing of row {place}: {_text(answer)}")
        if 200 <= status < 300 or (status == 409 and conflicts_are_taken):
            continue
        failed.append((place, _failed(status, said.get("error"))))
    return failed


def may_be_a_rows_fault(answer: Reply) -> bool:
    """Whether the request may be accepted without some of its rows."""
    return answer.status == 413 or (answer.status == 400 and isinstance(_error(answer), dict))


def reason(answer: Reply) -> str:
    """Why a request was not accepted."""
    if answer.status == 401:
        return "the server does not accept the credentials (401)"
    error = _error(answer)
    said = _words(error) if isinstance(error, dict) else _text(answer)
    return f"the server answered {answer.status} {answer.phrase}: {said}"


def _failed(status: int, error: Any) -> Failed:
    error = error if isinstance(error, dict) else {}
    kind, why = str(error.get("type", "")), str(error.get("reason", ""))
    if status == 400:
        transient = any(kind == known and why.startswith(begins) for known, begins in _CAN_PASS)
    else:
        transient = kind not in _ROWS_FAULT
    return Failed(f"{_words(error)} ({status})", transient)


def _words(error: dict[str, Any]) -> str:
    said = f"{error.get('type', 'error')}: {excerpt(str(error.get('reason', '')), _SHOWN)}"
    cause = error.get("caused_by")
    if isinstance(cause, dict) and cause.get("reason"):
        said += f" ({excerpt(str(cause['reason']), _SHOWN // 2)})"
    return said


def _error(answer: Reply) -> Any:
    try:
        found = orjson.loads(answer.body)
    except ValueError:
        return None
    return found.get("error") if isinstance(found, dict) else None


def _text(answer: Reply) -> str:
    return excerpt(answer.text.strip(), _SHOWN) or "(no text)"
