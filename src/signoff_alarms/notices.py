"""Results, alerts and reports in a line each, for people."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

_NUMBERS = {
    "numberOfEquipmentFailures": "failed {} times",
    "numberOfPowerGridVoltageOutrage": "grid voltage {word} {} times",
    "numberOfBatteryLowVoltage": "battery voltage too low {} times",
}
_KINDS: dict[str | None, str] = {"critical": "ALERT  ", "ended": "ENDED  "}
_WORDS = {308: "too high", 309: "too low"}


def notice(payload: bytes | str) -> str:
    """A message of the application as a line; any other message as it is."""
    text = payload if isinstance(payload, str) else payload.decode(errors="replace")
    try:
        fields = json.loads(text)
        return _result(fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"message  {' '.join(text.split())}"


def of_report(file: Path) -> str:
    return f"REPORT   {file.stem}: {file}"


def _result(fields: dict[str, Any]) -> str:
    name = next(name for name in _NUMBERS if name in fields) if _NUMBERS.keys() & fields.keys() else ""
    word = _WORDS.get(fields["alarmId"], f"off (alarm {fields['alarmId']})")
    what = _NUMBERS[name].format(fields[name], word=word)
    if (mean := fields.get("meanDeviation")) is not None:
        what += f", by {mean:+.1f} V on average"
    kind = _KINDS.get(fields.get("severity"), "result ")
    begin, end = (_moment(fields[name]) for name in ("windowStart", "windowEnd"))
    until = f"{end:%H:%M}" if end.date() == begin.date() else f"{end:%Y-%m-%d %H:%M}"
    where = f"station {fields['stationId']}, sensor {fields['datapointId']}"
    return f"{kind}  {begin:%Y-%m-%d %H:%M} to {until}  {where}: {what}"


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.removesuffix(" UTC").removesuffix("Z"))
