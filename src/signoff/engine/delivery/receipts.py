"""Receipts: what a sink signed for in a batch that is not finished.

A batch is recorded in the ledger when all its tasks have ended. A sink that is done long before
another one would be written again if the run were killed in between; its receipt prevents that. A
receipt covers one sink and the sequences from the first to the last that one task saw, and holds
the task's results for that sink. Tasks read contiguous slices of the log, so those sequences were
in no other task; for plans that shuffle rows this does not hold, and no receipts are written.

A receipt holds for the rows that came to its sink. It carries the form of the pipeline they came from (see
`forms`), and does not count for another: a step that has been repaired makes rows it knows nothing of.

A receipt is durable before it counts (written aside, fsynced, renamed), and the directory of a
batch is removed once the ledger has recorded it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from signoff.engine.plan.task_report import TaskReport, from_table, to_batch
from signoff.private import make_private, opener
from signoff.sinks.contract import BatchRef, Part

_FORM = b"form"


@dataclass(frozen=True, slots=True)
class Receipt:
    sink: str
    partition: int
    span: tuple[int, int]
    results: list[TaskReport]
    form: str
    """What the rows were made by."""


def receipts_directory(state: Path, batch: BatchRef) -> Path:
    return state / "receipts" / batch.key


def write_receipt(
    directory: Path,
    sink: str,
    part: Part,
    span: tuple[int, int],
    results: Sequence[TaskReport],
    form: str = "",
) -> None:
    """Executor: store one sink's results for one task."""
    make_private(directory, durable=False)
    final = directory / f"{sink}.{part.partition}.{span[0]}-{span[1]}.arrow"
    aside = directory / f".{final.name}.{part.attempt}"
    batch = to_batch(results).replace_schema_metadata({_FORM: form.encode()})
    with open(aside, "wb", opener=opener) as file:
        with pa.ipc.new_stream(file, batch.schema) as writer:
            writer.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(final)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_receipts(directory: Path) -> list[Receipt]:
    """A task that is tried again: what is signed for already, by whatever pipeline."""
    return [_read(path) for path in sorted(directory.glob("*.arrow"))]


def valid_receipts(directory: Path, forms: Mapping[str, str]) -> list[Receipt]:
    """Driver, before a batch is run again: what is signed for already. `forms`: of each sink as it is now;
    receipts of another form, or of a sink that is gone, are removed."""
    found = []
    for path in sorted(directory.glob("*.arrow")):
        receipt = _read(path)
        if forms.get(receipt.sink) == receipt.form:
            found.append(receipt)
        else:
            path.unlink(missing_ok=True)
    return found


def _read(path: Path) -> Receipt:
    sink, partition, span = path.name.removesuffix(".arrow").rsplit(".", 2)
    first, last = span.split("-")
    with path.open("rb") as file:
        table = pa.ipc.open_stream(file).read_all()
    form = (table.schema.metadata or {}).get(_FORM, b"").decode()
    return Receipt(sink, int(partition), (int(first), int(last)), from_table(table), form)


def remove_stray_receipts(state: Path, source: str, unfinished: Iterable[BatchRef]) -> None:
    """Driver, at the start: remove those of batches that were recorded in the moment the run was killed."""
    kept = {batch.key for batch in unfinished}
    for directory in (state / "receipts").glob(f"{source}-*"):
        if directory.name not in kept:
            remove_receipts(directory)


def remove_receipts(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
