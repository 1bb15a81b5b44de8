"""Spark's checkpoint of a query: where it is, which range a batch has, and what to do with a torn one.

The ledger is the authority on what is done; the checkpoint says how Spark cuts the log in front of a
window's or a fold's state into batches, and holds that state.

Invariant: the offsets of a checkpoint in use reach at least as far as the ledger's batches, for Spark
writes them before the batch is opened. One that is behind belongs to an earlier form of the pipeline.
`checkpoint_sync` makes that hold after a loss of power, too.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from pathlib import Path

from signoff.durable import write_whole
from signoff.engine.spark.checkpoint_sync import SyncedFiles
from signoff.errors import EngineError
from signoff.private import make_private

logger = logging.getLogger(__name__)


class Checkpoint:
    """The checkpoint directory of one source's query, for state of one form."""

    def __init__(self, state: Path, source: str, shape: str) -> None:
        """`shape`: what the state depends on; state of another form is in another directory."""
        form = hashlib.sha256(shape.encode()).hexdigest()[:12]
        self.path = _directory(state) / f"{source}-{form}"
        self.synced = SyncedFiles(self.path)

    def watermark_ms(self, batch_id: int) -> int:
        """The watermark that a batch was done with: all windows that end there or before are closed by it."""
        return self._metadata(batch_id, "batchWatermarkMs")

    def time_ms(self, batch_id: int) -> int:
        """The time at which Spark began a batch, which is the same when it is done again."""
        return self._metadata(batch_id, "batchTimestampMs")

    def _metadata(self, batch_id: int, name: str) -> int:
        try:
            lines = (self.path / "offsets" / str(batch_id)).read_text().splitlines()
            return int(json.loads(lines[1])[name])
        except (OSError, ValueError, IndexError, KeyError, TypeError) as error:
            raise self._damaged(batch_id, error) from error

    def exists(self) -> bool:
        return (self.path / "metadata").exists()

    def begin(self, first: int) -> None:
        """Note where the first batch begins: Spark does not, and after a kill it asks again."""
        make_private(self.path.parent)
        write_whole(self._first_file, str(first).encode())
        self.synced.begin()

    @property
    def first(self) -> int | None:
        """Where the first batch begins; None if nobody has noted it."""
        try:
            return int(self._first_file.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def end_of(self, batch_id: int) -> int | None:
        """The sequence at which a batch ends, from Spark's own write-ahead log; None if there is none."""
        try:
            lines = (self.path / "offsets" / str(batch_id)).read_text().splitlines()
            return int(json.loads(lines[2])["sequence"])
        except FileNotFoundError:
            return None
        except (ValueError, IndexError, KeyError, TypeError) as error:
            raise self._damaged(batch_id, error) from error

    def _damaged(self, batch_id: int, error: Exception) -> EngineError:
        return EngineError(f"the checkpoint {self.path} is damaged at batch {batch_id}: {error}")

    def last_batch(self, log: str = "offsets") -> int | None:
        found = [int(path.name) for path in (self.path / log).glob("*") if path.name.isdigit()]
        return max(found, default=None)

    def finished(self) -> int:
        """Spark will never ask again for events below, not even after a loss of power."""
        done = self.synced.done
        return (self.end_of(done - 1) or 0) if done else 0

    def sync_committed(self) -> None:
        """Make durable what Spark has committed. Raises OSError."""
        last = self.last_batch("commits")
        if last is not None and last >= (self.synced.done or 0):
            self.synced.sync(last + 1)

    def make_usable(self, taken: int, *, keep: bool = False) -> None:
        """Put aside a checkpoint that cannot be gone on with. `taken`: the ledger has batches up to here.

        `keep`: it holds what must not be lost. Raises EngineError then, with what is wrong.

        The disk may have failed; and while the step had another form, another checkpoint was in use and
        this one was left behind.
        """
        last = self.last_batch("commits")
        self.synced.restore(0 if last is None else last + 1)
        if not self.exists():
            if keep and taken > (self.first or 0):
                raise EngineError(f"the checkpoint {self.path} is gone")
            if self.path.exists():
                self._set_aside()
            return
        self._sweep()
        try:
            json.loads((self.path / "metadata").read_text())
            self._check_commit()
            last = self.last_batch()
            end = self.first if last is None else self.end_of(last)
        except (ValueError, EngineError) as error:
            if keep:
                raise EngineError(str(error)) from error
            raise EngineError(
                f"{error}; it holds state and cannot be made anew. Restore it, or remove it to begin "
                "with empty state: no event is lost, but what the state held is"
            ) from error
        else:
            if end is not None and end < taken:
                if keep:
                    raise EngineError(f"the checkpoint {self.path} ends at {end}, the ledger at {taken}")
                logger.warning(
                    "the checkpoint %s ends at %d, the ledger at %d; it is put aside and made anew",
                    self.path, end, taken,
                )  # fmt: skip
                self._set_aside()

    def begin_anew(self, first: int) -> None:
        """Whatever is there is put aside; what is begun next begins here."""
        if self.path.exists():
            self._set_aside()
        self.begin(first)

    @property
    def _first_file(self) -> Path:
        return self.path.with_name(f"{self.path.name}.first")

    def _check_commit(self) -> None:
        """Spark stops at a commit it cannot read, and does not say how to go on."""
        last = self.last_batch("commits")
        if last is None:
            return
        lines = (self.path / "commits" / str(last)).read_text().splitlines()
        if len(lines) < 2:
            raise EngineError(f"the checkpoint {self.path} is damaged at the commit of batch {last}")
        json.loads(lines[1])

    def _sweep(self) -> None:
        """Remove what a kill left half written: Spark refuses to begin where its logs are not quite empty."""
        for log in ("offsets", "commits"):
            for left in (self.path / log).glob(".*.tmp*"):
                left.unlink(missing_ok=True)

    def _set_aside(self) -> None:
        self.path.rename(self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}"))


def remove_former(state: Path, source: str) -> None:
    """Remove the checkpoint of a source that an earlier version read with a streaming query, because of a
    function on DataFrames. It held no state of ours, and what is done stands in the ledger."""
    former = _directory(state) / source
    if not former.is_dir():
        return
    for beside in (".first", ".synced"):
        former.with_name(f"{source}{beside}").unlink(missing_ok=True)
    shutil.rmtree(former)
    logger.info('source "%s" needs no checkpoint of Spark\'s any more; the one it had is removed', source)


def _directory(state: Path) -> Path:
    return state / "checkpoints"
