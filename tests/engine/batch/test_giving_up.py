"""A sink that gives a batch up holds no row of it: dead letters are replayed, and would be there twice."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from signoff.engine.batch.verdict import Final, Round, judge
from signoff.engine.plan.task_report import ReportKind, TaskReport, pack_rows
from signoff.errors import SinkError
from signoff.ledger.batch_state import Untried
from signoff.ledger.outcome import RowRef
from signoff.ledger.sequences import to_bytes
from signoff.pipeline.model import Retry, SinkConfig
from signoff.sinks.contract import BatchRef, Part
from signoff.sinks.files import commit as files_commit
from signoff.sinks.files.sink import FilesSink, FilesSinkConfig

BATCH = BatchRef("in", 0, 2)
SIGNED = TaskReport("out", ReportKind.SIGNED, number=2, blob=to_bytes(BitMap64([0, 1])))
OWED = TaskReport(
    "out",
    ReportKind.OWED,
    text="down",
    number=1,
    blob=pack_rows([(np.array([0, 1], np.int64), pa.array(["", ""]))]),
)


def round_of(
    config: SinkConfig, results: Sequence[TaskReport], commit: Callable[[str, Sequence[bytes]], str | None]
) -> Round:
    return judge(results, {"out": (config, Untried())}, {}, commit, {"out"}, 0.0, None, {"out"})


@pytest.mark.parametrize("failure", ["disk full", Final("too many rows")])
@pytest.mark.parametrize("results", [[SIGNED], [OWED]])
@pytest.mark.parametrize("taken_back", [True, False])
def test_rows_are_given_up_once_what_was_published_of_them_is_taken_back(
    failure: str, results: list[TaskReport], taken_back: bool
) -> None:
    committed: list[list[bytes]] = []

    def commit(_: str, parts: Sequence[bytes]) -> str | None:
        committed.append(list(parts))
        return failure if parts or not taken_back else None

    part = TaskReport("out", ReportKind.PART, blob=b"part")
    config = SinkConfig(type="toy", on_failure="dead_letter", retry=Retry(attempts=1))
    verdict = round_of(config, [*results, part], commit)
    assert committed == ([[b"part"], []] if SIGNED in results else [[]])
    assert [outcome.row for outcome in verdict.outcomes] == ([RowRef(0), RowRef(1)] if taken_back else [])
    assert verdict.sinks["out"].done is taken_back
    assert list(verdict.owed) == ([] if taken_back else [0, 1])


def test_files_of_a_batch_that_is_given_up_are_gone_also_if_the_directory_cannot_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    config = FilesSinkConfig(path="out", input="x", retry=Retry(attempts=1), on_failure="dead_letter")
    real, sink = files_commit.sync_directory, config.build(tmp_path)
    part = written(sink, {})
    synced: list[Path] = []

    with monkeypatch.context() as patch:
        patch.setattr(files_commit, "sync_directory", fails)
        for _ in range(2):
            verdict = committed_round(config, sink, part)
            assert not verdict.outcomes and list(verdict.owed) == [0, 1], "they are still owed"
        patch.setattr(files_commit, "sync_directory", lambda path: (synced.append(path), real(path))[1])
        sink.commit(BATCH, ())
    assert synced == [tmp_path / "out"], "a file that is gone may come back until its directory is synced"
    assert not shown(tmp_path)


def test_files_of_a_batch_of_which_only_some_could_be_shown_are_gone_when_it_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = FilesSinkConfig(
        path="out", input="x", partition_by=["k"], retry=Retry(attempts=1), on_failure="dead_letter"
    )
    sink, real = config.build(tmp_path), Path.replace
    part = written(sink, {"k": ["x", "y"]})
    renamed: list[Path] = []

    def replace(path: Path, target: Path) -> Path:
        if path.name.startswith("whole-"):
            if renamed:
                raise OSError(errno.ENOSPC, "No space left on device")
            renamed.append(path)
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        verdict = committed_round(config, sink, part)
    assert renamed and [outcome.row for outcome in verdict.outcomes] == [RowRef(0), RowRef(1)]
    assert not shown(tmp_path)


def written(sink: FilesSink, columns: dict[str, list[str]]) -> bytes:
    sink.prepare()
    rows = pa.record_batch({"event_id": ["in/0", "in/1"], "n": [0, 1], **columns})
    if columns:  # what the plan computes for `partition_by`
        rows = rows.append_column("_partition0", rows.column("k"))
    writer = sink.open(Part(BATCH, 0, 0))
    assert not writer.write(rows)
    part = writer.close()
    assert part is not None
    return part


def committed_round(config: FilesSinkConfig, sink: FilesSink, part: bytes) -> Round:
    def commit(_: str, parts: Sequence[bytes]) -> str | None:
        try:
            sink.commit(BATCH, parts)
        except SinkError as error:
            return str(error)
        return None

    return round_of(config, [SIGNED, TaskReport("out", ReportKind.PART, blob=part)], commit)


def shown(place: Path) -> list[Path]:
    return [path for path in (place / "out").rglob("*.jsonl") if ".parts" not in path.parts]
