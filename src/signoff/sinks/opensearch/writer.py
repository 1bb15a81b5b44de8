"""What writes rows to a cluster, in one task: in requests one after the other, in the order of the events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pyarrow as pa

from signoff.bounded_http import NoAnswer, Reply, Unsendable
from signoff.sinks.contract import Refusal, Writer
from signoff.sinks.opensearch import answers
from signoff.sinks.opensearch.actions import Lines, lines_of, sorted_out
from signoff.sinks.opensearch.server import Hosts
from signoff.sinks.refusal import RowsRejected, brief, isolate, refused

if TYPE_CHECKING:
    from signoff.sinks.opensearch.sink import SearchSink

_FAILED_REQUESTS = 3
"""Requests in a row that fail as a whole after which the rest of a write is not sent: a server that is down
costs a few timeouts, and one request that it chokes on does not stop the others."""
_WANTED = "errors,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by.reason"
_ANSWER_BASE, _ANSWER_ROW, _ANSWER_ECHO = 64 * 1024, 1024, 3
"""How long an answer may be: in all, for each row, and for each byte sent, since errors show values."""


@dataclass(slots=True)
class _Write:
    """The rows of one write."""

    lines: Lines
    failed: list[Refusal] = field(default_factory=list)
    troubles: int = 0
    """Requests since the last that was answered row by row."""
    trouble: str = ""

    def fail(self, start: int, end: int, reason: str) -> None:
        said = brief(reason)
        self.failed += [Refusal(index, said, transient=True) for index in range(start, end)]

    def fail_request(self, start: int, end: int, reason: str) -> None:
        self.troubles, self.trouble = self.troubles + 1, reason
        self.fail(start, end, reason)


class SearchWriter(Writer):
    def __init__(self, sink: SearchSink) -> None:
        self._sink = sink
        self._config = sink.config
        self._hosts: Hosts | None = None
        # The server waits for the shards of an index that it makes (30 s, whatever we say) and once more for
        # those it writes to. We wait longer than both together, so that it says which rows failed.
        patience = {"timeout": f"{max(sink.config.timeout_ms // 4, 1)}ms", "filter_path": _WANTED}
        refresh = {"refresh": str(sink.config.refresh).lower()} if sink.config.refresh else {}
        pipeline = {"pipeline": sink.config.pipeline} if sink.config.pipeline else {}
        self._path = f"_bulk?{urlencode({**patience, **refresh, **pipeline})}"
        self._conflicts_are_taken = sink.config.op == "create" or sink.config.version is not None

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        found = sorted_out(rows, self._sink.ids, by_sequence=self._config.by_sequence)
        if not found.rows.num_rows:
            return found.refusals
        write = _Write(lines_of(found.rows, self._config.op))
        hosts = self._ready()
        permanent: list[Refusal] = []
        for bounds in write.lines.requests(self._config.max_request_bytes):
            permanent += isolate(*bounds, lambda start, end: self._send(hosts, write, start, end))
        return found.original([*permanent, *write.failed])

    def close(self) -> bytes | None:
        self.abort()
        return None

    def abort(self) -> None:
        if self._hosts is not None:
            self._hosts.close()
            self._hosts = None

    def _ready(self) -> Hosts:
        if not self._sink.is_prepared:
            self._sink.prepare()  # or the first row would make its index without the template
        if self._hosts is None:
            self._hosts = Hosts(self._config, self._sink.base)
        return self._hosts

    def _send(self, hosts: Hosts, write: _Write, start: int, end: int) -> None:
        """Send some rows in one request. Raises RowsRejected when they may be accepted in halves, or, for a
        single row, never; notes what has failed otherwise."""
        if write.troubles >= max(_FAILED_REQUESTS, len(hosts)):
            return write.fail(start, end, f"not sent: {write.trouble}")
        content = write.lines.content(start, end)
        most = _ANSWER_BASE + _ANSWER_ROW * (end - start) + _ANSWER_ECHO * len(content)
        try:
            answer = hosts.ask("POST", self._path, content, most_bytes=most)
        except (NoAnswer, Unsendable) as error:
            return write.fail_request(start, end, str(error))
        if answer.is_success:
            return self._sort(write, answer, start, end)
        if not answers.may_be_a_rows_fault(answer):
            return write.fail_request(start, end, answers.reason(answer))
        write.troubles = 0
        size = f"a request of {len(content)} bytes: " if answer.status == 413 else ""
        raise RowsRejected(f"{size}{answers.reason(answer)}")

    def _sort(self, write: _Write, answer: Reply, start: int, end: int) -> None:
        try:
            failed = answers.of_items(answer, end - start, conflicts_are_taken=self._conflicts_are_taken)
        except ValueError as error:
            return write.fail_request(start, end, str(error))
        write.troubles = 0
        for place, one in failed:
            said = refused(start + place, one.reason)
            write.failed.append(Refusal(said.index, said.reason, one.transient))
        return None
