"""What came out of a pipeline against what a test expects, as a diff for people.

Rows are compared without order; columns that an expected row does not name are not compared. Expected values
are what YAML can write: a time is compared as a time, a decimal as a number, floats to nine digits. Rows that
do not fit anything are shown beside the one that is nearest.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from signoff.pipeline.secrets import excerpt, redact
from signoff.pipeline.tests_block import Case, as_moment
from signoff.pipeline.tests_block import Letter as ExpectedLetter
from signoff.sinks.contract import EVENT_ID
from signoff.testing.running import Letter, Result

_LONGEST = 200
_MOST = 20
"""Lines shown of one kind."""
_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """One thing that is not as expected, in lines."""

    at: str
    """Where in the test: `expect.table`, `letters`, `drops.filtered`."""
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def differences(case: Case, result: Result) -> list[Difference]:
    """Everything that is not as the test expects; empty where it passes."""
    found: list[Difference] = []
    if result.gave_up:  # first: all that is missing is missing because of it
        found.append(Difference("given", (f"it did not come to an end: {redact(result.gave_up)}",)))
    for name, expected in case.expect.items():
        ids = result.ids.get(name, [])
        rows = [{EVENT_ID: event, **row} for event, row in zip(ids, result.rows[name], strict=True)]
        lines = _count(expected, rows) if isinstance(expected, int) else _rows(expected, rows)
        if lines:
            found.append(Difference(f"expect.{name}", (f"{name}:", *lines)))
    if lines := _letters(case.letters, result.letters):
        found.append(Difference("letters", ("dead letters:", *lines)))
    for stage, number in case.drops.items():
        if (got := result.drops.get(stage, 0)) != number:
            found.append(Difference(f"drops.{stage}", (f"drops at {stage}: expected {number}, got {got}",)))
    for name, number in case.account.model_dump(exclude_none=True).items():
        if (got := result.account.get(name, 0)) != number:
            found.append(Difference(f"account.{name}", (f"{name}: expected {number}, got {got}",)))
    return found


def _count(expected: int, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if len(rows) == expected:
        return []
    return [f"  expected {expected} rows, got {len(rows)}", *_few([f"    {shown(row)}" for row in rows])]


def _rows(expected: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a diff; the pairs that differ least stand side by side."""
    left, missing = list(rows), []
    for wanted in expected:
        at = next((n for n, row in enumerate(left) if not wrong_fields(wanted, row)), None)
        if at is None:
            missing.append(wanted)
        else:
            left.pop(at)
    lines: list[str] = []
    for wanted in missing:
        nearest = min(left, key=lambda row: len(wrong_fields(wanted, row)), default=None)
        if nearest is None or len(wrong_fields(wanted, nearest)) == len(wanted) > 1:
            lines.append(f"  - missing:    {shown(wanted)}")
            continue
        left.remove(nearest)
        lines += _side_by_side(wanted, nearest)
    return _few(lines) + _few([f"  + unexpected: {shown(_named(row, expected))}" for row in left])


def _named(row: Mapping[str, Any], expected: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The columns that the test speaks of; all if it speaks of none."""
    names = {name for each in expected for name in each} or row.keys() - {EVENT_ID}
    return {name: value for name, value in row.items() if name in names}


def _side_by_side(wanted: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    wrong = wrong_fields(wanted, row)
    same = {name: value for name, value in wanted.items() if name not in wrong}
    lines = [f"  ~ differs:    {shown(same) if same else 'in every column'}"]
    width = max(map(len, wrong))
    for name in wrong:
        got = "(no such column)" if name not in row else shown(row[name])
        lines.append(f"      {name.ljust(width)}  expected {shown(wanted[name])}  got {got}")
    return lines


def wrong_fields(expected: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """The columns whose values are not those expected."""
    return [name for name, value in expected.items() if not same(value, row.get(name, _ABSENT))]


def same(expected: Any, got: Any) -> bool:
    """Whether a value of a row is what YAML says."""
    if got is _ABSENT:
        return False
    if expected is None or got is None:
        return expected is got
    if isinstance(expected, Mapping):
        items = dict(got) if isinstance(got, list) and all(isinstance(each, tuple) for each in got) else got
        return (
            isinstance(items, Mapping)
            and expected.keys() <= items.keys()
            and all(same(value, items[key]) for key, value in expected.items())
        )
    if isinstance(expected, list | tuple):
        return isinstance(got, list | tuple) and len(expected) == len(got) and all(map(same, expected, got))
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(got, int | float | Decimal):
        return _same_number(expected, got)
    return _same_text(expected, got)


def _same_number(expected: Any, got: float | Decimal) -> bool:
    if isinstance(expected, str) and not isinstance(got, Decimal):
        return isinstance(got, float) and not math.isfinite(got) and expected.lower() == str(got)
    try:
        wanted = Decimal(str(expected))
    except InvalidOperation:
        return False
    if isinstance(got, float):
        return math.isclose(float(wanted), got, rel_tol=1e-9, abs_tol=1e-12)
    return wanted == Decimal(got)


def _same_text(expected: Any, got: Any) -> bool:
    if isinstance(got, datetime):
        try:
            wanted = as_moment(expected)
        except ValueError:
            return False
        return bool(wanted == (got if got.tzinfo else got.replace(tzinfo=UTC)))
    if isinstance(got, date):
        return str(expected) == got.isoformat()
    if isinstance(got, bytes):
        return expected in (got.decode(errors="replace"), base64.b64encode(got).decode(), got)
    return bool(expected == got)


def _letters(expected: Sequence[ExpectedLetter], letters: Sequence[Letter]) -> list[str]:
    left, missing = list(letters), []
    for wanted in expected:
        at = next((n for n, letter in enumerate(left) if _is_letter(wanted, letter)), None)
        if at is None:
            missing.append(f"  - missing:    at {wanted.stage}: {wanted.reason or '(any reason)'}")
        else:
            left.pop(at)
    unexpected = [f"  + unexpected: at {each.stage}: {excerpt(each.reason, _LONGEST)}  {_text(each.payload)}"
                  for each in left]  # fmt: skip
    return _few(missing) + _few(unexpected)


def _is_letter(wanted: ExpectedLetter, letter: Letter) -> bool:
    if wanted.stage != letter.stage or wanted.reason.lower() not in letter.reason.lower():
        return False
    if wanted.payload is None:
        return True
    text = letter.payload.decode(errors="replace")
    if isinstance(wanted.payload, str):
        return wanted.payload == text
    try:
        return same(wanted.payload, json.loads(text))
    except ValueError:
        return False


def _text(payload: bytes) -> str:
    return excerpt(redact(payload.decode(errors="replace")), _LONGEST)


def _few(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _MOST else [*lines[:_MOST], f"  … and {len(lines) - _MOST} more lines"]


def shown(value: Any) -> str:
    """A value as the test would write it."""
    return excerpt(redact(json.dumps(_writable(value), ensure_ascii=False)), _LONGEST)


def _writable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _writable(part) for name, part in value.items() if name != EVENT_ID}
    if isinstance(value, list | tuple):
        return [_writable(part) for part in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value
