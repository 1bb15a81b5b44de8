"""How a user's function on rows is called by Spark: whatever one row does, its neighbours go on.

Spark converts a task's rows for a function, and what it returned, all at once: one value that cannot be
converted fails the task, four times, and then the plan. Here a batch of rows is converted at once as well,
and row by row when that fails. Values of the declared types are made before (see `values`), so what fails
here is rare: text of a column that is not UTF-8, a time that Python does not know, a result of gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType

from signoff.pipeline.secrets import KnownSecrets
from signoff.transforms.row_results import words_of


class Call(Protocol):
    """What is done with one value of the column. Pickled to executors."""

    def __call__(self, value: Any, /) -> Any:
        """The result, in a form Arrow takes. Raises nothing that can be caught."""

    def failed(self, value: Any, reason: str, /) -> Any:
        """The result for a value that could not be read, or whose result could not be written."""


def arrow_udf(call: Call, given: DataType, returns: DataType) -> Callable[[Column], Column]:
    """A function of Spark's that makes `returns` of a column of type `given`."""
    batches = _Batches(call, given, returns)

    def run(values: pa.Array) -> pa.Array:  # Spark reads in type hints which kind of function it is
        return batches(values)

    function: Callable[[Column], Column] = F.arrow_udf(run, returns)
    return function


class _Batches:
    def __init__(self, call: Call, given: DataType, returns: DataType) -> None:
        self.call, self.given, self.secrets = call, given, KnownSecrets()
        self.returns = to_arrow_type(returns, timezone="UTC")

    def __call__(self, values: pa.Array) -> pa.Array:
        results = [self._result(value) for value in self._read(values)]
        try:
            return pa.array(results, self.returns)
        except Exception:  # noqa: BLE001 - Arrow raises what it likes; the rows are looked at one by one
            return self._one_by_one(values, results)

    def _result(self, value: Any) -> Any:
        if isinstance(value, _Unreadable):
            reason = f"the event cannot be given to the function: {value.reason}"
            return self.call.failed(value.bare, reason)
        return self.call(value)

    def _read(self, values: pa.Array) -> Iterator[Any]:
        """The values as Spark gives them to functions, or why one cannot be had."""
        convert = ArrowTableToRowsConversion._create_converter(self.given)
        try:
            found = ArrowTableToRowsConversion._to_pylist(values)
        except Exception:  # noqa: BLE001 - of one value, and the others are to be read all the same
            found = [None] * len(values)
            readable = False
        else:
            readable = True
        for index, value in enumerate(found):
            try:
                yield convert(value if readable else values[index].as_py())
            except Exception as error:  # noqa: BLE001 - it is the error of this value
                yield _Unreadable(_bare(values[index]), f"{type(error).__name__}: {words_of(error)}")

    def _one_by_one(self, values: pa.Array, results: list[Any]) -> pa.Array:
        arrays = []
        for index, result in enumerate(results):
            try:
                arrays.append(pa.array([result], self.returns))
            except Exception as error:  # noqa: BLE001 - it is the error of this row
                reason = (
                    f"what the function returned cannot be kept: {type(error).__name__}: {words_of(error)}"
                )
                failed = self.call.failed(_bare(values[index]), reason)
                arrays.append(pa.array([failed], self.returns))
        return pa.concat_arrays(arrays)


class _Unreadable:
    def __init__(self, bare: Any, reason: str) -> None:
        self.bare, self.reason = bare, reason


def _bare(value: pa.Scalar) -> Any:
    """The value without the events' own columns: of a list of events, which they are."""
    if not pa.types.is_list(value.type) and not pa.types.is_large_list(value.type):
        return None
    return [{name: member[name].as_py() for name in member if name != "event"} for member in value]
