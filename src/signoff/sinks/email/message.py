"""Mails from rows: addresses, texts, attachments, and the id by which a mail is known again.

Invariants: what a row holds cannot add a header, a recipient or markup: a text with a control character is
no header, one entry of `to` is one address, and HTML is escaped. A file is attached only from below the
directory that the pipeline names, or if it has the checksum that the row says. The same row gives the same
mail, byte for byte, but for its date.

The `Message-ID` is made from the event's id and from all that the mail says. The id alone would be the same
in another pipeline, or in this one after its state was deleted, and a server that knows it would keep quiet
about a mail that nobody has seen.
"""

from __future__ import annotations

import hashlib
import json
import mimetypes
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email import policy
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from functools import lru_cache
from pathlib import Path

_POLICY = policy.SMTP.clone(cte_type="7bit")  # nothing that a server must be asked for first
_LOCAL = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_DOMAIN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")
_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+")
_UNSEEN = {ord(c): "\ufffd" for c in map(chr, [*range(32), 127]) if c not in "\t\n\r"}
_LONGEST_ID = 40
_LONGEST_ADDRESS = 1_000
_LONGEST_HEADER = 4_000
"""Characters. The time that Python's library takes grows with the square of the length."""
_EVENT_HEADER = "X-Signoff-Event"


class Unmailable(Exception):
    """No mail can be made of this row."""


@dataclass(frozen=True, slots=True)
class File:
    """An attachment."""

    name: str
    content: bytes
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """What a mail is to say."""

    about: str
    """The event's id, or that of a batch: the same on every replay."""
    sender: Address
    to: tuple[Address, ...]
    cc: tuple[Address, ...]
    bcc: tuple[Address, ...]
    reply_to: tuple[Address, ...]
    subject: str
    text: str | None
    html: str | None
    files: tuple[File, ...]
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Mail:
    """What goes over the wire."""

    id: str
    sender: str
    recipients: tuple[str, ...]
    content: bytes


@lru_cache(1024)  # the sender and most recipients are the same in each mail, and the parser is slow
def address_of(text: str) -> Address:
    """`somebody@example.com` or `Some Body <somebody@example.com>`. Raises ValueError."""
    if len(text) > _LONGEST_ADDRESS:
        raise ValueError(f"{text[:80]!r}… is no address: it has {len(text):,} characters")
    try:
        require_header(text)
        parsed = policy.SMTP.header_factory("To", text)
        (found,), (group,) = parsed.addresses, parsed.groups
        local, domain = found.username, found.domain.encode("idna").decode()
        plain = not parsed.defects and group.display_name is None
    except Exception as error:  # the parser fails in many ways on what is no address
        raise ValueError(f"{text!r} is not one address") from error
    if not plain or not _LOCAL.fullmatch(local) or not _DOMAIN.fullmatch(domain):
        raise ValueError(f"{text!r} is not one address of ASCII letters")
    return Address(found.display_name, local, domain)


def require_header(text: str) -> str:
    """The text, if it can be the value of a header. Raises ValueError."""
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
            raise ValueError(f"it has a line end or another control character in it: {text[:80]!r}")
    return text


def require_type(text: str | None) -> str | None:
    """The text, if it can be the type of an attachment. Raises ValueError."""
    if text is not None and not _TYPE.fullmatch(text):
        raise ValueError(f"{text!r} is no content type, such as application/pdf")
    return text


def require_mailable(draft: Draft) -> tuple[str, ...]:
    """Everybody who is to have the mail; also looks at its subject. Raises Unmailable."""
    everybody = tuple(dict.fromkeys(one.addr_spec for one in (*draft.to, *draft.cc, *draft.bcc)))
    if not everybody:
        raise Unmailable("it has no recipient")
    _header("subject", draft.subject)
    return everybody


def compose(draft: Draft, home: str) -> Mail:
    """The mail. `home`: what tells this pipeline from others. Raises Unmailable."""
    everybody = require_mailable(draft)
    digest = _digest(draft, home)
    about = re.sub(r"[^A-Za-z0-9]+", ".", draft.about).strip(".")[:_LONGEST_ID].strip(".")
    id_ = f"<{about + '.' if about else ''}{digest[:20]}@{draft.sender.domain}>"
    message = EmailMessage(policy=_POLICY)
    message["From"] = draft.sender
    for name, addresses in (("To", draft.to), ("Cc", draft.cc), ("Reply-To", draft.reply_to)):
        if addresses:
            message[name] = addresses
    message["Subject"] = draft.subject
    message["Date"] = format_datetime(datetime.now(UTC))
    message["Message-ID"] = id_
    message["Auto-Submitted"] = "auto-generated"  # nobody's absence is to be told to us
    message[_EVENT_HEADER] = draft.about.encode("ascii", "replace").decode()[:200]
    for name, value in draft.headers.items():
        message[name] = value
    _add_texts(message, draft)
    for file in draft.files:
        main, sub = _kind(file).split("/", 1)
        name = _header("the name of an attachment", file.name)
        message.add_attachment(file.content, maintype=main, subtype=sub, filename=name)
    parts = [part for part in message.walk() if part.is_multipart()]
    for number, part in enumerate(parts):
        part.set_boundary(f"=_{digest[24:56]}_{number}")  # by itself it would be another each time
    return Mail(id_, draft.sender.addr_spec, everybody, message.as_bytes())


def attached(directory: Path, path: str, most_bytes: int) -> File:
    """A file from below a directory. Raises Unmailable, or OSError while it cannot be read."""
    try:
        place = (directory / path).resolve()
        inside = place.is_relative_to(directory.resolve())
    except (ValueError, RuntimeError) as error:
        raise Unmailable(f"{path!r} is not the path of a file") from error
    if not inside:
        raise Unmailable(f"{path!r} is not below {directory}")
    with place.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise Unmailable(f"{path} is larger than {most_bytes} bytes")
    return File(place.name, content)


def known(base: Path, file: object, most_bytes: int) -> File:
    """A file that a row names with its checksum, as that of a report does. Only what has the checksum is
    attached: so the path may be any, for a row cannot get at what its maker does not know, and the file of
    another edition at the same path is not mailed as this one. Raises Unmailable, or OSError while it is not
    there."""
    path, said = (file.get("path"), file.get("sha256")) if isinstance(file, Mapping) else (None, None)
    if not isinstance(path, str) or not isinstance(said, str):
        raise Unmailable(
            "a list to attach has files with `path` and `sha256`, as the column files of a report"
        )
    try:
        place = (base / path).resolve()
        special = place.exists() and not place.is_file()
    except (ValueError, RuntimeError) as error:
        raise Unmailable(f"{path!r} is not the path of a file") from error
    if special:
        raise Unmailable(f"{path!r} is no file")
    with place.open("rb") as opened:
        content = opened.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise Unmailable(f"{path} is larger than {most_bytes} bytes")
    if hashlib.sha256(content).hexdigest() != said:
        raise Unmailable(f"{path} is not the file that was published: it has another checksum")
    return File(place.name, content)


def _add_texts(message: EmailMessage, draft: Draft) -> None:
    text = None if draft.text is None else draft.text.translate(_UNSEEN)
    html = None if draft.html is None else draft.html.translate(_UNSEEN)
    if text is not None:
        message.set_content(text)
    if html is not None and text is not None:
        message.add_alternative(html, subtype="html")
    elif html is not None:
        message.set_content(html, subtype="html")


def _header(what: str, text: str) -> str:
    if len(text) > _LONGEST_HEADER:
        raise Unmailable(
            f"{what}: it has {len(text):,} characters, more than {_LONGEST_HEADER:,}; "
            "the filter truncate shortens it"
        )
    try:
        return require_header(text)
    except ValueError as error:
        raise Unmailable(f"{what}: {error}; the filter one_line makes one line of it") from error


def _kind(file: File) -> str:
    guessed, packed = mimetypes.guess_type(file.name)
    return file.content_type or (guessed if guessed and not packed else "application/octet-stream")


def _digest(draft: Draft, home: str) -> str:
    files = [[one.name, _kind(one), hashlib.sha256(one.content).hexdigest()] for one in draft.files]
    people = [_texts(one) for one in ((draft.sender,), draft.to, draft.cc, draft.bcc, draft.reply_to)]
    said = [home, draft.about, people, draft.subject, draft.text, draft.html, files, dict(draft.headers)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _texts(addresses: Sequence[Address]) -> list[str]:
    return [str(one) for one in addresses]
