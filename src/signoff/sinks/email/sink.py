"""Sink `email`: a mail for each row.

Invariants: a row is signed for when the server has taken its mail for every recipient. A row of which no
mail can be made is refused alone and for good, before anything is sent of it; so is one that has a recipient
refused with 5xx. 4xx, a lost connection, a refused login and a file that is not there yet are asked for
again.

At least once: what was handed over but not recorded is sent again, with the same `Message-ID`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from email.headerregistry import Address
from pathlib import Path
from typing import Any

import pyarrow as pa

from signoff.json_text import json_lines
from signoff.pipeline.secrets import register_secrets_of
from signoff.sinks.contract import EVENT_ID, Part, Refusal, RunRef, Sink, Writer
from signoff.sinks.email.config import Attachment, EmailSinkConfig
from signoff.sinks.email.delivery import Postman
from signoff.sinks.email.message import Draft, File, Mail, Unmailable, address_of, attached, compose, known
from signoff.sinks.email.session import Session
from signoff.sinks.message_ids import MessageIds
from signoff.sinks.refusal import brief, fit
from signoff.templating import TemplateFailed, Values, fill, of_row, read_values, render

Contents = Callable[[str], bytes | list[Any] | None]
"""The content of a column to attach, by its name; or the files it names."""


class EmailSink(Sink):
    def __init__(self, config: EmailSinkConfig, base: Path) -> None:
        self.config = config
        self.base = base
        self.run, self.ids = "", MessageIds()

    def begin(self, run: RunRef) -> None:
        self.run, self.ids = f"{run.id} {run.began_at}", MessageIds(run)

    def prepare(self) -> None:
        register_secrets_of(self.config)
        Session(self.config.server(self.base)).close()  # a wrong password is known before the first alert

    def open(self, part: Part) -> Writer:
        register_secrets_of(self.config)  # this is another process than the one that read the file
        return _EmailWriter(self)


class _EmailWriter(Writer):
    def __init__(self, sink: EmailSink) -> None:
        self._config, self._base, self._ids = sink.config, sink.base, sink.ids
        self._postman = Postman(self._config.server(self._base), sink.run)

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        sorted_out = fit(self._ids.applied(rows))
        lines = json_lines(sorted_out.rows).view(pa.large_binary()).to_pylist()
        refusals: list[Refusal] = []
        self._postman.begin()
        for index, line in enumerate(lines):
            try:
                mail = self._mail(read_values(line), sorted_out.rows.slice(index, 1))
            except Unmailable as error:
                refusals.append(Refusal(index, brief(error), transient=False))
                continue
            except OSError as error:
                reason = f"{error.filename}: {error.strerror}"
                refusals.append(Refusal(index, brief(f"attachment {reason}"), transient=True))
                continue
            if (failed := self._postman.deliver(mail)) is not None:
                refusals.append(Refusal(index, brief(failed.reason), failed.transient))
        return sorted_out.original(refusals)

    def close(self) -> bytes | None:
        self._postman.close()
        return None

    def abort(self) -> None:
        self._postman.drop()

    def _mail(self, row: Mapping[str, Any], cells: pa.RecordBatch) -> Mail:
        def content(column: str) -> bytes | list[Any] | None:
            if column not in cells.schema.names:
                raise Unmailable(f'there is no column "{column}" to attach')
            value = cells.column(column)[0].as_py()
            if value is None or isinstance(value, bytes | list):
                return value
            if isinstance(value, str):
                return value.encode()
            raise Unmailable(f'column "{column}" is no BINARY, STRING or files, and cannot be attached')

        draft = drafted(self._config, self._base, str(row[EVENT_ID]), of_row(row), content)
        return compose(draft, str(self._base.resolve()))


def drafted(config: EmailSinkConfig, base: Path, about: str, values: Values, content: Contents) -> Draft:
    """What the mail about these values says. Raises Unmailable, or OSError for a file that is not there."""
    text, html = config.shown_text, config.html
    return Draft(
        about=about,
        sender=address_of(config.sender),
        to=_addresses("to", config.to, values),
        cc=_addresses("cc", config.cc, values),
        bcc=_addresses("bcc", config.bcc, values),
        reply_to=_addresses("reply_to", config.reply_to, values),
        subject=_rendered("subject", config.subject, values),
        text=None if text is None else _rendered("text", text, values),
        html=None if html is None else _rendered("html", html, values, html=True),
        files=_files(config, base, values, content),
        headers=config.headers,
    )


def _rendered(field: str, template: str, values: Values, *, html: bool = False) -> str:
    try:
        return render(template, values, "html" if html else "text")
    except TemplateFailed as error:
        raise Unmailable(f"{field}: {error}") from error


def _addresses(field: str, templates: Sequence[str], values: Values) -> tuple[Address, ...]:
    """A text is one address, whatever commas it has; only a list in a column is several."""
    found: list[str] = []
    for template in templates:
        try:
            value = fill(template, values)
        except TemplateFailed as error:
            raise Unmailable(f"{field}: {error}") from error
        parts = value if isinstance(value, list) else [value]
        found += [str(part).strip() for part in parts if part is not None and str(part).strip()]
    try:
        return tuple(address_of(text) for text in found)
    except ValueError as error:
        raise Unmailable(f"{field}: {error}") from error


def _files(config: EmailSinkConfig, base: Path, values: Values, content: Contents) -> tuple[File, ...]:
    found: list[File] = []
    left = config.max_attachment_bytes
    for one in config.attachments:
        for file in _files_of(one, config, base, values, content, left):
            left -= len(file.content)
            if left < 0:
                raise Unmailable(f"its attachments have more than {config.max_attachment_bytes} bytes")
            name = _rendered("attachments", one.name, values).strip() if one.name is not None else file.name
            found.append(File(name or file.name, file.content, one.content_type))
    return tuple(found)


def _files_of(
    one: Attachment, config: EmailSinkConfig, base: Path, values: Values, content: Contents, left: int
) -> list[File]:
    if one.path is not None:
        path = _rendered("attachments", one.path, values).strip()
        return [attached(base / (config.attachments_from or ""), path, left)] if path else []
    assert one.column is not None
    found = content(one.column)
    if isinstance(found, list):
        return [known(base, file, left) for file in found]
    return [] if found is None else [File(one.column, found)]
