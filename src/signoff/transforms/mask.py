"""`mask`: values that nobody behind this step is to see: hashed, redacted, or shown in part.

Null stays null: whether there was a value is no secret here, and nothing is made up. A key is a secret: it
is neither in the plan that Spark prints nor in any log; the function that uses it goes to executors as bytes.

What stands in front of the step is not masked by it: the log of the source, until its events are settled, and
dead letters hold the events as they came.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal, Self

import pyarrow as pa
from pydantic import Field, SecretStr, field_validator, model_validator
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

from signoff.pipeline.model import Config
from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.frame import View

_SHORTEST_KEY = 16


class Partly(Config):
    """A value of which some characters are shown."""

    first: int = Field(default=0, ge=0)
    """How many at its beginning."""
    last: int = Field(default=0, ge=0)
    """How many at its end."""

    @model_validator(mode="after")
    def _shows_something(self) -> Self:
        if not self.first and not self.last:
            raise ValueError("say how many characters are shown: first, last or both")
        return self


class MaskConfig(Transform):
    summary: ClassVar[str] = "Hash, redact or show in part the values of columns."
    example: ClassVar[str] = """\
columns:
  email: hash
  name: redact
  card: {last: 4}
key: ${file:/run/secrets/mask_key}
"""
    type: Literal["mask"] = "mask"
    columns: dict[str, Literal["hash", "redact"] | Partly] = Field(min_length=1)
    """What is done with each column. `hash`: SHA-256 as hexadecimal text, with `key` HMAC-SHA-256; the same
    value has the same hash. `redact`: the text of `redacted` instead. `{first: 2, last: 4}`: that many
    characters are shown, each other one is a `*`; a value with no more than these is not shown at all."""
    key: SecretStr | None = None
    """Secret for `hash`, of at least 16 bytes. Without one, whoever can guess a value (a telephone number, an
    address) can find it by its hash."""
    redacted: str = "***"
    """What stands in the place of a value that is redacted."""
    sign: Annotated[str, Field(min_length=1, max_length=1)] = "*"
    """What stands in the place of a character that is not shown."""

    @field_validator("key")
    @classmethod
    def _is_long(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value().encode()) < _SHORTEST_KEY:
            raise ValueError(f"a key has at least {_SHORTEST_KEY} bytes")
        return value

    @model_validator(mode="after")
    def _uses_the_key(self) -> Self:
        if self.key is not None and "hash" not in self.columns.values():
            raise ValueError('there is a "key", but no column is hashed')
        return self

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        kinds = view.frame.schema_of(view)
        for name in self.columns:
            if name not in kinds:
                hint = f"there is: {', '.join(kinds)}"
                raise FieldError("columns", "unresolved-column", f'there is no column "{name}"', hint)
            if isinstance(kinds[name], ArrayType | MapType | StructType):
                message = (
                    f'column "{name}" is {kinds[name].simpleString()}, of which no part can be named here'
                )
                raise FieldError("columns", "type-error", message, "flatten it before, or leave it out")
        keyed = {name for name, how in self.columns.items() if how == "hash" and self.key is not None}
        values = {
            name: self._masked(how, F.col(f"`{name}`"), kinds[name])
            for name, how in self.columns.items()
            if name not in keyed
        }
        made = view.frame.compute(view, values)
        for name in keyed:
            # Spark evaluates Python functions before it looks at conditions.
            given = F.when(F.col(view.alive), _plain(F.col(f"`{name}`"), kinds[name]))
            made |= view.frame.compute(view, {name: self._keyed()(given)}, guarded=False)
        return {None: View(view.frame, view.alive, {**view.columns, **made})}

    def _masked(self, how: Literal["hash", "redact"] | Partly, value: Column, kind: DataType) -> Column:
        if how == "hash":
            return F.sha2(_plain(value, kind), 256)
        if how == "redact":
            return F.when(value.isNotNull(), F.lit(self.redacted))
        assert isinstance(how, Partly)
        text = value.cast("string")
        length, shown = F.length(text), F.lit(how.first + how.last)
        masked = F.concat(
            F.substring(text, 1, how.first) if how.first else F.lit(""),
            F.repeat(F.lit(self.sign), length - shown),
            F.right(text, F.lit(how.last)) if how.last else F.lit(""),
        )
        return F.when(length > shown, masked).otherwise(F.repeat(F.lit(self.sign), length))

    def _keyed(self) -> Callable[[Column], Column]:
        assert self.key is not None
        secret = _Key(self.key.get_secret_value().encode())

        def keyed_hash(
            values: pa.Array,
        ) -> pa.Array:  # Spark reads in type hints which kind of function it is
            return secret.hashes(values)

        function: Callable[[Column], Column] = F.arrow_udf(keyed_hash, "string")
        return function


class _Key:
    """The key, where no text that is made of this object shows it."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return "_Key(***)"

    def hashes(self, values: pa.Array) -> pa.Array:
        return pa.array(
            [None if value is None else self._hash(value) for value in values.to_pylist()], pa.string()
        )

    def _hash(self, value: bytes) -> str:
        return hmac.digest(self._secret, value, hashlib.sha256).hex()


def _plain(value: Column, kind: DataType) -> Column:
    """What is hashed: bytes as they are, of all else the text."""
    return value if isinstance(kind, BinaryType) else value.cast("string").cast("binary")
