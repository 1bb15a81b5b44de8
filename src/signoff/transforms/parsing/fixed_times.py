"""Times in bulk, where each digit has its place: `2024-05-01T12:30:00.250Z` and such.

What comes out is what Spark makes of the same text in a session whose time zone is UTC; a text in any other
form, or with a time that does not exist, is said to be uncertain.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_Signs = npt.NDArray[np.uint8]

_Items = list[tuple[str, str | int]]

_FIRST_YEAR = 1583
"""Before, calendars differ."""
_MINUTE = 60_000_000
_TOKEN = re.compile(r"'[^']+'|yyyy|MM|dd|HH|mm|ss|S{1,6}|XXX|X|z|[-/:., ]")
_OFFSET: list[_Items] = [[("", "Z")], [("±", 1), ("h", 2), ("", ":"), ("m", 2)]]
_KINDS = {"yyyy": "Y", "MM": "M", "dd": "D", "HH": "H", "mm": "I", "ss": "S"}


@dataclass(frozen=True)
class _Part:
    """A number in a text, or a fixed sign."""

    kind: str
    """What the number is ("Y", "M", …), or "" for a sign."""
    place: int
    length: int
    sign: str = ""


@dataclass(frozen=True)
class Form:
    """One form of a time, of a fixed length."""

    parts: tuple[_Part, ...]

    @property
    def length(self) -> int:
        return sum(part.length for part in self.parts)

    @classmethod
    def of(cls, items: Iterable[tuple[str, str | int]]) -> Form:
        """From what stands in it: ("Y", 4) is a number of four digits, ("", "-") a fixed text."""
        parts: list[_Part] = []
        place = 0
        for kind, given in items:
            if isinstance(given, int):
                parts.append(_Part(kind, place, given))
                place += given
            else:
                parts += [_Part("", place + i, 1, sign) for i, sign in enumerate(given)]
                place += len(given)
        return cls(tuple(parts))

    def read(self, signs: _Signs) -> tuple[Numbers, Flags]:
        """Microseconds since the epoch of texts of this length, a column each, and which are certain."""
        certain = np.ones(signs.shape[1], bool)
        numbers: dict[str, Numbers] = {}
        for part in self.parts:
            sign = signs[part.place]
            if part.kind == "±":
                certain &= (sign == ord("+")) | (sign == ord("-"))
                numbers["±"] = np.where(sign == ord("-"), -1, 1)
            elif part.kind:
                number = np.zeros(signs.shape[1], np.int64)
                for digit in signs[part.place : part.place + part.length] - ord("0"):  # others are beyond 9
                    certain &= digit <= 9
                    number = number * 10 + digit
                numbers[part.kind] = number
            else:
                certain &= sign == ord(part.sign)
        return _micros(numbers, {p.kind: p.length for p in self.parts}, certain)


def _micros(numbers: dict[str, Numbers], lengths: dict[str, int], certain: Flags) -> tuple[Numbers, Flags]:
    nothing: Any = np.int64(0)
    year, month, day = numbers["Y"], numbers["M"], numbers["D"]
    hour, minute, second = (numbers.get(kind, nothing) for kind in "HIS")
    certain = certain & (year >= _FIRST_YEAR) & (month >= 1) & (month <= 12) & (day >= 1)
    certain = certain & (hour <= 23) & (minute <= 59) & (second <= 59)
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    certain = certain & (days.astype("datetime64[M]") == months)  # there is no 31st of June
    micros = (days.astype(np.int64) * 1440 + hour * 60 + minute) * _MINUTE + second * 1_000_000
    if "F" in numbers:
        micros = micros + numbers["F"] * 10 ** (6 - lengths["F"])
    if "h" in numbers:
        certain = certain & (numbers["h"] <= 17) & (numbers["m"] <= 59)
        micros = micros - numbers["±"] * (numbers["h"] * 60 + numbers["m"]) * _MINUTE
    return micros, certain


@dataclass(frozen=True)
class FixedTimes:
    """The forms that times may have in a column."""

    forms: tuple[Form, ...]

    @classmethod
    def of(cls, pattern: str | None) -> FixedTimes | None:
        """The forms that a pattern of Spark's allows, or ISO 8601; None for one with other elements."""
        if pattern is None:
            return cls(tuple(_iso()))
        tokens = _TOKEN.findall(pattern)
        numbers = [token[0] for token in tokens if token[0] in "yMdHmsSXz"]
        if "".join(tokens) != pattern or not set("yMd") <= set(numbers) or len(numbers) > len(set(numbers)):
            return None
        # Java has its own ways with a fraction next to digits, a zone besides an offset, and two quotes.
        if not pattern.isascii() or "''" in pattern or {"X", "z"} <= set(numbers):
            return None
        if re.search(r"(^|[yMdHms])S|S[yMdHms]", pattern):
            return None
        choices = [_choices(token) for token in tokens]
        return cls(tuple(Form.of(itertools.chain(*items)) for items in itertools.product(*choices)))

    def read(self, texts: pa.StringArray) -> tuple[pa.Array, Flags]:
        """The times, and of each text whether its time is certain; a null is."""
        number = len(texts)
        if texts.null_count == number:
            return pa.nulls(number, pa.timestamp("us", "UTC")), np.ones(number, bool)
        _, offsets, data = texts.buffers()
        bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + number + 1]
        signs = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        begin, lengths = bounds[:-1], np.diff(bounds)
        valid = np.asarray(texts.is_valid())
        micros, certain = np.zeros(number, np.int64), ~valid
        for length in np.unique(lengths[valid]).tolist():
            forms = [form for form in self.forms if form.length == length]
            if not forms:
                continue
            rows = np.flatnonzero(valid & (lengths == length))
            if len(rows) == number:  # without gaps
                shaped = signs[begin[0] : begin[0] + number * length].reshape(number, length)
            else:
                shaped = signs[begin[rows][:, None] + np.arange(length)]
            columns = np.ascontiguousarray(shaped.T)
            for form in forms:
                values, fit = form.read(columns)
                micros[rows[fit]], certain[rows[fit]] = values[fit], True
        return pa.array(micros, mask=~valid).cast(pa.timestamp("us", "UTC")), certain


def _choices(token: str) -> list[_Items]:
    """What may stand in a text for an element of a pattern."""
    if token in _KINDS:
        return [[(_KINDS[token], len(token))]]
    if token.startswith("S"):
        return [[("F", len(token))]]
    if token == "z":
        return [[("", "UTC")]]
    if token == "X":
        return [[("", "Z")]]
    if token == "XXX":
        return _OFFSET
    return [[("", token.strip("'"))]]


def _iso() -> Iterable[Form]:
    """ISO 8601, with or without fractions of a second and a zone; without one it is UTC."""
    date: _Items = [("Y", 4), ("", "-"), ("M", 2), ("", "-"), ("D", 2)]
    time: _Items = [("H", 2), ("", ":"), ("I", 2), ("", ":"), ("S", 2)]
    zones: list[_Items] = [*_OFFSET, [], [("", " UTC")]]
    for between, digits, zone in itertools.product("T ", range(7), zones):
        fraction: _Items = [("", "."), ("F", digits)] if digits else []
        yield Form.of([*date, ("", between), *time, *fraction, *zone])
