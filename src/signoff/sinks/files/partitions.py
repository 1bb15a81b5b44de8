"""Directories by the values of rows, laid out and escaped as Hive and Spark do: `day=2021-05-01/kind=a%2Fb`.

Readers that know the layout (Spark, DuckDB, pyarrow, Hive) bring the values back as columns. Null and the
empty text are `__HIVE_DEFAULT_PARTITION__`, as Spark writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

NOTHING = "__HIVE_DEFAULT_PARTITION__"
PREFIX = "_partition_"
"""Columns the engine adds to the rows: the values of the expressions, as text. Never written."""
LONGEST = 255
"""Bytes of a name that file systems can hold."""
LONGEST_PATH = 4095
"""Bytes of a path that the system takes."""
_ESCAPED = {*range(0x20), 0x7F, *map(ord, "\"#%'*/:=?\\{[]^")}


def escaped(text: str) -> str:
    """As `ExternalCatalogUtils.escapePathName` of Spark."""
    return "".join(f"%{ord(sign):02X}" if ord(sign) in _ESCAPED else sign for sign in text)


def directory_of(names: Sequence[str], values: Sequence[str | None]) -> str:
    return "/".join(
        f"{escaped(name)}={escaped(value) if value else NOTHING}"
        for name, value in zip(names, values, strict=True)
    )


def is_too_long(directory: str, room: int) -> bool:
    """`room`: the bytes that the path of a file in it has for the directory, with a slash."""
    steps = directory.encode().split(b"/")
    return any(len(step) > LONGEST for step in steps) or len(directory.encode()) + 1 > room


def divided(names: Sequence[str], values: Sequence[pa.Array]) -> Iterator[tuple[str, pa.Array]]:
    """Each directory that there are rows for, and the indices of its rows, in their order."""
    count = len(values[0])
    codes = np.zeros(count, np.int64)
    for column in values:
        encoded = column.dictionary_encode(null_encoding="encode")
        codes = codes * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy()
        _, codes = np.unique(codes, return_inverse=True)  # small again, or many columns would overflow
    order = np.argsort(codes, kind="stable")
    bounds = np.flatnonzero(np.diff(codes[order])) + 1
    for indices in np.split(order, bounds):
        found = [column[int(indices[0])].as_py() for column in values]
        yield directory_of(names, found), pa.array(indices)
