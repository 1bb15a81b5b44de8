"""Sink `email` with a digest: one mail for the rows of a batch.

Tasks hand their rows to the driver, which sends the mail when all of them are done. Invariants: all rows of
a batch are signed for when the server has taken the mail for every recipient; the mail of a batch that is
done again has the same `Message-ID`. No more rows are kept than the mail may show, and it says how many
others there are. A row of which alone no mail can be made is refused alone, when it is written: a batch is
refused as a whole, so one such row among a thousand would be a dead letter of each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from signoff.errors import PermanentError, TransientError
from signoff.json_text import json_lines
from signoff.pipeline.secrets import register_secrets_of
from signoff.sinks.contract import BatchRef, Part, Refusal, RunRef, Sink, Writer
from signoff.sinks.email.config import EmailSinkConfig
from signoff.sinks.email.delivery import Postman
from signoff.sinks.email.message import Unmailable, compose, require_mailable
from signoff.sinks.email.session import Session
from signoff.sinks.email.sink import drafted
from signoff.sinks.refusal import brief, fit
from signoff.templating import Values, read_values


class EmailDigestSink(Sink):
    atomic: ClassVar[bool] = True

    def __init__(self, config: EmailSinkConfig, base: Path) -> None:
        assert config.digest is not None
        self.config = config
        self.base = base
        self.run = ""
        self.max_rows = config.digest.max_rows
        self._bare = config.model_copy(update={"attachments": ()})

    def begin(self, run: RunRef) -> None:
        self.run = f"{run.id} {run.began_at}"

    def prepare(self) -> None:
        register_secrets_of(self.config)
        Session(self.config.server(self.base)).close()

    def open(self, part: Part) -> Writer:
        register_secrets_of(self.config)  # this is another process than the one that read the file
        return _DigestWriter(part.partition, self)

    def commit(self, batch: BatchRef, parts: Sequence[bytes]) -> None:
        total, lines = _united(parts)
        if not total:
            return
        rows = [read_values(line) for line in lines[: self.max_rows]]
        values = {"rows": rows, "count": total, "more": total - len(rows)}
        postman = Postman(self.config.server(self.base), self.run)
        try:
            draft = drafted(self.config, self.base, batch.key, values, lambda _: None)
            failed = postman.deliver(compose(draft, str(self.base.resolve())))
        except Unmailable as error:
            raise PermanentError(brief(error)) from error
        except OSError as error:
            raise TransientError(brief(f"attachment {error.filename}: {error.strerror}")) from error
        finally:
            postman.close()
        if failed is not None:
            raise (TransientError if failed.transient else PermanentError)(brief(failed.reason))

    def unmailable(self, row: Mapping[str, Any]) -> str | None:
        """Why there can be no mail that shows this row. One mail must be possible of it alone, or of it twice
        and with others: a template may be made for several. Attachments are not looked at."""
        try:
            self._try({"rows": [row], "count": 1, "more": 0})
        except Unmailable as error:
            try:
                self._try({"rows": [row, row], "count": 3, "more": 1})
            except Unmailable:
                return brief(error)
        return None

    def _try(self, values: Values) -> None:
        require_mailable(drafted(self._bare, self.base, "", values, lambda _: None))


class _DigestWriter(Writer):
    """Keeps no more rows than may be shown, however large the batch."""

    def __init__(self, partition: int, sink: EmailDigestSink) -> None:
        self._partition = partition
        self._sink = sink
        self._rows = 0
        self._kept: list[bytes] = []

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        sorted_out = fit(rows)
        lines = json_lines(sorted_out.rows)  # all of them: a type without a form is known at once
        refusals: list[Refusal] = []
        for index, line in enumerate(lines.view(pa.large_binary())):
            if self._rows + index - len(refusals) >= self._sink.max_rows:
                break  # the others are only counted
            text: bytes = line.as_py()
            if (reason := self._sink.unmailable(read_values(text))) is not None:
                refusals.append(Refusal(index, reason, transient=False))
            else:
                self._kept.append(text.rstrip(b"\n") + b"\n")
        self._rows += sorted_out.rows.num_rows - len(refusals)
        return sorted_out.original(refusals)

    def close(self) -> bytes | None:
        if not self._rows:
            return None
        return f"{self._partition} {self._rows}\n".encode() + b"".join(self._kept)


def _united(parts: Sequence[bytes]) -> tuple[int, list[bytes]]:
    """How many rows there are, and those that were kept, in the order of their tasks."""
    read = [part.partition(b"\n") for part in parts]
    ordered = sorted(read, key=lambda one: int(one[0].split()[0]))
    total = sum(int(head.split()[1]) for head, _, _ in ordered)
    return total, [line for _, _, text in ordered for line in text.split(b"\n") if line]
