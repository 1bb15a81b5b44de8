"""Which events a row stands for: one, or several where a step has united them. Runs on executors.

A row has a first origin (`_sequence`), a child (what follows the sequence in its id) and, where a step
has united events, further origins (`_others`). What a sink says of such a row it says for all of them:
`by_origin` names the row once for each, always with the row's own child. So an origin's exceptions,
debts and letters are kept under its own sequence, as those of any event, and the account needs to know
nothing of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from signoff.engine.plan.task_report import RowArrays
from signoff.transforms.frame import CHILD, OTHERS, SEQUENCE

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Lineage:
    """The origins of some rows."""

    sequences: Numbers
    children: pa.Array
    others: pa.ListArray | None = None
    """None when each row has one origin."""

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> Lineage:
        names = rows.schema.names
        if lost := rows.column(SEQUENCE).null_count:
            raise ValueError(f"rows without an origin: {lost}; a function has returned null in _origin")
        others = rows.column(OTHERS) if OTHERS in names else None
        if others is not None and others.null_count == len(others):
            others = None
        children = rows.column(CHILD) if CHILD in names else pa.repeat("", rows.num_rows)
        return cls(rows.column(SEQUENCE).to_numpy(), children, others)

    def __len__(self) -> int:
        return len(self.sequences)

    def take(self, indices: Numbers | Sequence[int]) -> Lineage:
        chosen = pa.array(indices, pa.int64())
        others = None if self.others is None else self.others.take(chosen)
        return Lineage(self.sequences[indices], self.children.take(chosen), others)

    def behind(self, suffix: str) -> Lineage:
        """The same rows at the input of a sink that has several."""
        if not suffix:
            return self
        children = [joined(child, suffix) for child in self.children.to_pylist()]
        return Lineage(self.sequences, pa.array(children, pa.string()), self.others)

    def widen(self, span: tuple[int, int] | None) -> tuple[int, int]:
        """The span, extended to these rows' first origins."""
        low, high = int(self.sequences.min()), int(self.sequences.max())
        return (low, high) if span is None else (min(low, span[0]), max(high, span[1]))

    def at(self, index: int) -> list[tuple[int, str]]:
        """One row, named once for each of its origins."""
        child = self.children[index].as_py()
        return [(sequence, child) for sequence in self.origins_at(index)]

    def origins_at(self, index: int) -> list[int]:
        further = None if self.others is None else self.others[index].as_py()
        return [int(self.sequences[index]), *(further or ())]

    def origins(self) -> Numbers:
        """All origins of all rows; one that has several rows may be in it several times."""
        if self.others is None:
            return self.sequences
        return np.concatenate([self.sequences, pc.list_flatten(self.others).to_numpy()])

    def origin_lists(self) -> pa.Array:
        """The origin of each row; a list of them where rows have several."""
        if self.others is None:
            return pa.array(self.sequences, pa.int64())
        return pa.array([self.origins_at(index) for index in range(len(self))], pa.list_(pa.int64()))

    def by_origin(self) -> RowArrays:
        """Each row, once for each of its origins."""
        if self.others is None:
            return self.sequences, self.children
        parents = pc.list_parent_indices(self.others)
        further = self.children.take(parents)
        return self.origins(), pa.concat_arrays([self.children.cast(pa.string()), further.cast(pa.string())])


def joined(child: str, suffix: str) -> str:
    return "/".join(part for part in (child, suffix) if part)


def made_from(child: str, parent: str, through: frozenset[str] | None = None) -> bool:
    """Whether a row is another one, or was made from it: `3/high` from `3`, and all from ''.

    Where several ways meet, a row is given the name of the one it came by: with `through`, the first such
    name in what follows the parent must be one of these steps.
    """
    if child == parent:
        return True
    if parent and not child.startswith(f"{parent}/"):
        return False
    if through is None:
        return True
    names = (part.partition(".")[0] for part in child[len(parent) :].split("/"))
    way = next((name for name in names if name[:1].isalpha()), None)
    return way is None or way in through
