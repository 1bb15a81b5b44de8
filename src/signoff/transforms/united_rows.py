"""How several rows become one: the lineage of the result.

Its origins are those of all the rows that went in; `_sequence` is the first, `_others` the rest. Its child
is `~` and a hash of the rows that went in, so that the same rows give the same id on every replay, and
other rows never do: where the row is asked for again, it is either the same row or it is not found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from signoff.transforms.frame import CHILD, OTHERS, RECEIVED_AT, SEQUENCE

UNITED = "~"
"""A part of a child that begins so names a row made of several."""
_HASH_LENGTH = 12

_ORIGINS, _MEMBERS, _FIRST = "__origins", "__members", "__first"
_KEEP_ORDER = "spark.sql.execution.replaceHashWithSortAgg"


def in_order(rows: DataFrame, keys: Sequence[str], order: Sequence[Column | str]) -> DataFrame:
    """The rows with the same keys next to each other, in an order that is the same whenever they are read.

    Spark's aggregates see them in this order only while it does not hash groups, which it gives up half-way
    when there are many.
    """
    rows.sparkSession.conf.set(_KEEP_ORDER, "true")
    return rows.repartition(*keys).sortWithinPartitions(*keys, *order)


def lineage_aggregates(rows: DataFrame) -> list[Column]:
    """What `united` needs to know of each group of rows."""
    sequence = F.col(SEQUENCE)
    if OTHERS in rows.columns:
        none = F.array().cast("array<bigint>")
        each = F.concat(F.array(sequence), F.coalesce(F.col(OTHERS), none))
        origins = F.array_distinct(F.flatten(F.collect_list(each)))
    else:
        origins = F.collect_set(sequence)
    member = F.concat_ws("/", sequence.cast("string"), F.col(CHILD))
    return [
        F.array_sort(origins).alias(_ORIGINS),
        F.array_sort(F.collect_list(member)).alias(_MEMBERS),
        F.min(RECEIVED_AT).alias(_FIRST),
    ]


def united(groups: DataFrame, columns: Iterable[str], child: Column | None = None) -> DataFrame:
    """Rows with lineage, from groups with `lineage_aggregates`. `child` is the hash if it is not given."""
    names = (SEQUENCE, CHILD, RECEIVED_AT, OTHERS)
    lineage = united_lineage(child)
    return groups.select(*(value.alias(name) for name, value in zip(names, lineage, strict=True)), *columns)


def united_lineage(child: Column | None = None) -> list[Column]:
    """Sequence, child, time of receipt and further origins of the row that a group becomes."""
    origins = F.col(_ORIGINS)
    hashed = F.substring(F.sha2(F.array_join(_MEMBERS, ","), 256), 1, _HASH_LENGTH)
    further = F.slice(origins, F.lit(2), F.greatest(F.size(origins) - 1, F.lit(0)))
    return [
        origins[0],
        F.concat(F.lit(UNITED), hashed) if child is None else child,
        F.col(_FIRST),
        F.when(F.size(origins) > 1, further),
    ]


def united_child(members: Iterable[tuple[int, str]]) -> str:
    """The child of a row made of these rows, as `united` computes it."""
    names = sorted(f"{sequence}/{child}" for sequence, child in members)
    return UNITED + hashlib.sha256(",".join(names).encode()).hexdigest()[:_HASH_LENGTH]
