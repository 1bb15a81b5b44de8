"""The log against a list: any order of appends, syncs, crashes, reopening, trimming and reading."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from signoff.errors import LogError, LogNoSpace
from signoff.log import LogReader, LogWriter, exclude, excluded, trim
from signoff.log import writer as writer_module
from tests.log.events import batch, segments, small_settings

_SETTINGS = small_settings(segment_bytes=64 * 1024)
_PAYLOADS = st.lists(
    st.one_of(st.binary(max_size=40), st.integers(0, 30_000).map(lambda size: b"x" * size)), max_size=6
)


class Crash(BaseException):
    """The process ends here."""


class LogModel(RuleBasedStateMachine):
    """`events` is all that was appended and not lost; the first `durable` of it may never be lost."""

    @initialize()
    def start(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="log-"))
        self.events: list[bytes] = []
        self.durable = 0
        self.kept_from = 0
        self.excluded: set[int] = set()
        self.writer = LogWriter(self.directory, _SETTINGS)
        self.reader = LogReader(self.directory)

    @rule(payloads=_PAYLOADS)
    def append(self, payloads: list[bytes]) -> None:
        assert self.writer.append(batch(payloads, len(self.events))) == len(self.events)
        self.events.extend(payloads)

    @rule()
    def sync(self) -> None:
        self.durable = self.writer.sync()
        assert self.durable == len(self.events)

    @rule(call=st.sampled_from(["pwrite", "fdatasync"]))
    def sync_without_room(self, call: str) -> None:
        if self.writer.next_sequence == self.durable:
            return
        with (
            mock.patch.object(writer_module.os, call, side_effect=OSError(28, "No space left on device")),
            pytest.raises(LogNoSpace),
        ):
            self.writer.sync()
        assert self.writer.sync() == len(self.events)
        self.durable = len(self.events)

    @rule()
    def crash_between_syncs(self) -> None:
        del self.events[self.durable :]
        self._reopen()

    @rule(cut=st.floats(0, 1), garbage=st.binary(max_size=200))
    def crash_during_sync(self, cut: float, garbage: bytes) -> None:
        """Any prefix of the bytes that were not durable yet is left, followed by anything."""
        segment = segments(self.directory)[-1]
        durable_size = segment.stat().st_size
        with mock.patch.object(writer_module.os, "fdatasync", side_effect=Crash):
            try:
                self.writer.sync()
            except Crash:
                size = segment.stat().st_size
                os.truncate(segment, durable_size + int((size - durable_size) * cut))
                with segment.open("ab") as file:
                    file.write(garbage)
        self._reopen()
        assert self.durable <= self.writer.next_sequence <= len(self.events)
        del self.events[self.writer.next_sequence :]
        self.durable = len(self.events)

    @rule(part=st.floats(0, 1))
    def trim_to(self, part: float) -> None:
        upto = int(self.durable * part)
        trim(self.directory, upto)
        first = self.reader.first()
        assert self.kept_from <= first <= max(self.kept_from, upto)
        self.kept_from = first

    @rule(part=st.floats(0, 1))
    def exclude_one(self, part: float) -> None:
        self.excluded.add(int(len(self.events) * part))
        exclude(self.directory, self.excluded)
        kept = {sequence for sequence in self.excluded if sequence >= self.kept_from}
        assert set(excluded(self.directory)) == kept

    @rule(low=st.floats(0, 1), high=st.floats(0, 1), count=st.integers(1, 5), fresh=st.booleans())
    def read(self, low: float, high: float, count: int, fresh: bool) -> None:
        reader = LogReader(self.directory) if fresh else self.reader
        span = self.durable - self.kept_from
        start, end = sorted(self.kept_from + int(span * part) for part in (low, high))
        expected = self.events[start:end]
        assert [
            value for _, rows in reader.read(start, end) for value in rows.column(0).to_pylist()
        ] == expected
        slices = reader.slices(start, end, count)
        read = [
            value for part in slices for _, rows in reader.read_slice(part) for value in rows[0].to_pylist()
        ]
        assert read == expected
        if expected:
            assert reader.lookup([start])[start]["payload"] == expected[0]

    @rule()
    def read_too_much(self) -> None:
        with pytest.raises(LogError):
            self.reader.read(self.kept_from, self.durable + 1)
        if self.kept_from:
            with pytest.raises(LogError):
                self.reader.read(self.kept_from - 1, self.durable)

    @invariant()
    def head_is_what_is_durable(self) -> None:
        assert self.reader.head() == self.durable == self.writer.durable_sequence
        assert self.writer.next_sequence == len(self.events)
        assert self.writer.last == ((1, self.durable - 1) if self.durable else (None, None))
        assert self.writer.size_bytes >= sum(path.stat().st_size for path in segments(self.directory))

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self._abandon()
            shutil.rmtree(self.directory)

    def _abandon(self) -> None:
        """Let go of the lock as the system does when the process ends, without a last sync."""
        for descriptor in (self.writer._lock, self.writer._segment, self.writer._head._descriptor):
            os.close(descriptor)

    def _reopen(self) -> None:
        self._abandon()
        self.writer = LogWriter(self.directory, _SETTINGS)


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
