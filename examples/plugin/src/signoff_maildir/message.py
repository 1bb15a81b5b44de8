"""From the bytes of a mail to the JSON of an event."""

from __future__ import annotations

import json
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from email.utils import parseaddr, parsedate_to_datetime


def payload_of(mail: bytes) -> tuple[bytes, str | None]:
    """A mail as an event's payload, and its Message-ID if it has one. Takes any bytes for a mail."""
    message = BytesParser(policy=policy.default).parsebytes(mail)
    fields = {
        "from": parseaddr(_header(message, "From"))[1],
        "to": parseaddr(_header(message, "To"))[1],
        "subject": _header(message, "Subject"),
        "date": _date(_header(message, "Date")),
        "text": _text(message),
    }
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace"), _header(
        message, "Message-ID"
    ) or None


def _header(message: EmailMessage, name: str) -> str:
    try:
        return str(message.get(name, ""))
    except (
        ValueError,
        IndexError,
        AttributeError,
    ):  # the standard library gives up on some
        return ""


def _date(text: str) -> str | None:
    try:
        return parsedate_to_datetime(text).isoformat()
    except (TypeError, ValueError):
        return None


def _text(message: EmailMessage) -> str:
    part = message.get_body(("plain", "html"))
    if part is None:
        return ""
    try:
        return str(part.get_content()).rstrip("\n")
    except (LookupError, ValueError):  # a charset nobody knows
        return (part.get_payload(decode=True) or b"").decode("utf-8", "replace")
