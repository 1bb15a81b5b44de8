"""What makes a pipeline a job: parameters with types, and which of them say which run it is.

A value is checked against its type wherever it comes from: the file, the command line, a row. It has one text
by which a run is known, so that the same value written in two ways is the same run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

Value = str | int | float | bool | date | datetime | None
"""Of a parameter; a datetime is in UTC."""
ParameterType = Literal["string", "int", "bigint", "double", "boolean", "date", "timestamp"]

_WHOLE = {"int": 2**31, "bigint": 2**63}
_TRUTH = {"true": True, "false": False}


class Parameter(BaseModel):
    """One parameter of a job."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    type: ParameterType
    """Its type, as in Spark SQL. A timestamp without a time zone is UTC."""
    default: Any = None
    """The value where none is given; null is one, too. Without a default a value must be given."""

    @property
    def required(self) -> bool:
        return "default" not in self.model_fields_set

    @model_validator(mode="after")
    def _default_fits(self) -> Self:
        read_value(self.type, self.default)
        return self


def _in_short(value: object) -> object:
    return {"type": value} if isinstance(value, str) else value


Parameters = dict[str, Annotated[Parameter, BeforeValidator(_in_short)]]


def read_value(kind: ParameterType, given: object) -> Value:
    """A value of a type, from a text or from what YAML makes of one. Raises ValueError."""
    if given is None:
        return None
    try:
        value: Value = _READ[kind](given)
        return value
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f'"{given}" is no {kind}{_EXAMPLES.get(kind, "")}') from None


def text_of(value: Value) -> str:
    """The one text of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else str(value)


def read_values(declared: Mapping[str, Parameter], given: Mapping[str, object]) -> dict[str, Value]:
    """A value for each parameter. Raises ValueError with all that is wrong, one a line."""
    wrong = [
        f'there is no parameter "{name}"; there is: {", ".join(declared) or "none"}'
        for name in given
        if name not in declared
    ]
    values: dict[str, Value] = {}
    for name, parameter in declared.items():
        if name not in given and parameter.required:
            wrong.append(f'the parameter "{name}" ({parameter.type}) needs a value')
            continue
        try:
            values[name] = read_value(parameter.type, given.get(name, parameter.default))
        except ValueError as error:
            wrong.append(f'parameter "{name}": {error}')
    if wrong:
        raise ValueError("\n".join(wrong))
    return values


def _string(given: object) -> str:
    if isinstance(given, bool | date):
        return text_of(given)
    return str(given)


def _whole(kind: str, given: object) -> int:
    if isinstance(given, bool | float):
        raise ValueError
    number = int(str(given))
    if not -_WHOLE[kind] <= number < _WHOLE[kind]:
        raise ValueError
    return number


def _double(given: object) -> float:
    if isinstance(given, bool) or not math.isfinite(number := float(str(given))):
        raise ValueError
    return number


def _boolean(given: object) -> bool:
    found = given if isinstance(given, bool) else _TRUTH.get(str(given).lower())
    if found is None:
        raise ValueError
    return found


def _date(given: object) -> date:
    if isinstance(given, datetime):
        raise ValueError
    return given if isinstance(given, date) else date.fromisoformat(str(given))


def _timestamp(given: object) -> datetime:
    moment = given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


_READ: Mapping[str, Any] = {
    "string": _string,
    "int": lambda given: _whole("int", given),
    "bigint": lambda given: _whole("bigint", given),
    "double": _double,
    "boolean": _boolean,
    "date": _date,
    "timestamp": _timestamp,
}
_EXAMPLES = {
    "date": "; write 2021-05-01",
    "timestamp": "; write 2021-05-01T10:00:00Z",
    "boolean": "; write true or false",
}
