"""What a pipeline says of its mails."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from signoff.pipeline.durations import Duration
from signoff.pipeline.model import Config, SinkConfig
from signoff.pipeline.secrets import Token
from signoff.sinks.email.message import address_of, require_header, require_type
from signoff.sinks.email.session import PORTS, Security, Server
from signoff.templating import Template, columns_in

if TYPE_CHECKING:
    from signoff.sinks.contract import Sink

ROW_TEXT = """\
{% for name, value in row.items() %}
{{ name }}: {{ value }}
{% endfor %}"""
DIGEST_TEXT = """\
{{ count }} rows

{% for one in rows %}
{% for name, value in one.items() %}
{{ name }}: {{ value }}
{% endfor %}

{% endfor %}
{% if more %}
… and {{ more }} more
{% endif %}"""
DIGEST_NAMES = frozenset({"rows", "count", "more"})
_OURS = frozenset(
    [
        "from",
        "to",
        "cc",
        "bcc",
        "reply-to",
        "sender",
        "subject",
        "date",
        "message-id",
        "content-type",
        "content-transfer-encoding",
        "content-disposition",
        "mime-version",
        "return-path",
    ]
)


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _is_address(value: str) -> str:
    if "{{" not in value and "{%" not in value:
        address_of(value)
    return value


def _is_plain_address(value: str) -> str:
    address_of(value)
    return value


Recipients = Annotated[
    tuple[Annotated[Template, AfterValidator(_is_address)], ...], BeforeValidator(_as_list)
]


class Attachment(Config):
    """A file that goes with each mail: one on disk, or the content of a column."""

    path: Template | None = None
    """Path of the file, below `attachments_from`; where it gives no text, the mail has no such file."""
    column: str | None = None
    """Column with the content, a BINARY or STRING; or with files, as the column `files` of a report, which
    are attached if they are what their checksums say. Null: the mail has no such file."""
    name: Template | None = None
    """Name of the file for who gets it; by default that of the file on disk, or of the column."""
    content_type: Annotated[str | None, AfterValidator(require_type)] = None
    """Such as `application/pdf`; by default what the name says."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if (self.path is None) == (self.column is None):
            raise ValueError("an attachment has either a path or a column")
        return self


class Digest(Config):
    """Many rows in one mail."""

    every: Literal["batch"] | Annotated[Duration, Field(gt=0)] = "batch"
    """`batch`: a mail for each batch of rows. A time, such as `15m`: rows wait in a buffer until the first of
    them is so old, and go in one mail; what is in it when the run ends is sent then."""
    max_rows: int = Field(default=1000, ge=1)
    """Most rows that `rows` holds; `more` says how many others there are."""


class EmailSinkConfig(SinkConfig):
    """Mails over SMTP."""

    summary: ClassVar[str] = "Mails, one per row or many rows in a digest, over SMTP with TLS."
    example: ClassVar[str] = """\
host: smtp.example.com
username: alarms
password: ${SMTP_PASSWORD}
from: Alarms <alarms@example.com>
to: noc@example.com
subject: "{{ stationId }} failed {{ failures }} times"
"""
    knows_ids: ClassVar[bool] = True

    type: Literal["email"] = "email"
    host: str = Field(min_length=1)
    """The mail server."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """Its port; null takes 587 with `starttls`, 465 with `tls`, 25 with `none`."""
    security: Security = "starttls"
    """`starttls` encrypts a connection that begins in the open, and refuses a server that does not offer it;
    `tls` is encrypted from the start; `none` is for a server on this machine, without a login."""
    username: str | None = None
    """User name; null: no login."""
    password: Token | None = None
    """The password, never shown."""
    ca_file: str | None = None
    """Certificates to trust instead of the system's; relative to the pipeline file."""
    verify_tls: bool = True
    """Whether the server's certificate must be valid."""
    timeout_ms: int = Field(default=30_000, ge=1)
    """How long a connection, or the handing over of a mail, may take."""
    sender: Annotated[str, AfterValidator(_is_plain_address)] = Field(alias="from")
    """The sender: `alarms@example.com` or `Alarms <alarms@example.com>`."""
    to: Recipients = ()
    """Recipients, each a template that gives one address, or none where it gives no text."""
    cc: Recipients = ()
    """Those who get a copy."""
    bcc: Recipients = ()
    """Those who get a copy that the others do not see."""
    reply_to: Recipients = ()
    """Where answers go, if not to the sender."""
    subject: Template
    """The subject. A row that would make it more than one line is refused; see the filter `one_line`."""
    text: Template | None = None
    """The mail as plain text; without `text` and `html` all columns, one a line."""
    html: Template | None = None
    """The mail as HTML, in which values are escaped; with `text` as well, the reader's program chooses."""
    attachments: tuple[Attachment, ...] = ()
    """Files that go with each mail."""
    attachments_from: str | None = None
    """Directory below which all files with a `path` are; relative to the pipeline file."""
    max_attachment_bytes: int = Field(default=20 * 1024**2, ge=1)
    """Most bytes of all attachments of a mail; a row that has more is refused."""
    digest: Digest | None = None
    """Many rows in one mail: templates then know `rows`, `count` and `more`. Null: a mail for each row."""
    headers: dict[str, str] = Field(default={})
    """Further headers of each mail."""

    @field_validator("username", "password")
    @classmethod
    def _is_ascii(cls, value: str | Token | None) -> str | Token | None:
        text = value if value is None or isinstance(value, str) else value.get_secret_value()
        if text is not None and not text.isascii():
            raise ValueError("it has a character that is not ASCII, which no login here can send")
        return value

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not (name.isascii() and name.replace("-", "").isalnum()) or name.lower() in _OURS:
                raise ValueError(f"{name!r} cannot be the name of a further header")
            require_header(text)
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password go together")
        if self.username is not None and self.security == "none":
            raise ValueError("a password is not sent over a connection in the open: set security")
        if not (self.to or self.cc or self.bcc):
            raise ValueError("there is nobody to send it to: set to, cc or bcc")
        if any(one.path is not None for one in self.attachments) and self.attachments_from is None:
            raise ValueError("attachments with a path need attachments_from, the directory they are in")
        if self.digest is not None:
            self._check_digest()
        return self

    def _check_digest(self) -> None:
        if any(one.column is not None for one in self.attachments):
            raise ValueError("a digest has no column to attach")
        for name, field in self._named().items():
            if name not in DIGEST_NAMES:
                raise ValueError(f"{field} names {name}, but a digest knows rows, count and more")

    def _named(self) -> dict[str, str]:
        files = [text for one in self.attachments for text in (one.path, one.name) if text is not None]
        return columns_in(
            to=list(self.to),
            cc=list(self.cc),
            bcc=list(self.bcc),
            reply_to=list(self.reply_to),
            subject=self.subject,
            text=self.text,
            html=self.html,
            attachments=list(files),
        )

    @property
    def collects_s(self) -> float:
        return 0.0 if self.digest is None or self.digest.every == "batch" else self.digest.every

    def named_columns(self) -> Mapping[str, str]:
        if self.digest is not None:
            return {}
        attached = {one.column: "attachments" for one in self.attachments if one.column is not None}
        return {**attached, **self._named()}

    @property
    def shown_text(self) -> str | None:
        """The template of the plain text; null for a mail of HTML alone."""
        if self.text is not None or self.html is not None:
            return self.text
        return ROW_TEXT if self.digest is None else DIGEST_TEXT

    def connects_to(self) -> tuple[str, int] | None:
        return self.host, self.port or PORTS[self.security]

    def needed_files(self, base: Path) -> tuple[Path, ...]:
        return (base / self.ca_file,) if self.ca_file else ()

    def local_directories(self, base: Path) -> tuple[Path, ...]:
        return (base / self.attachments_from,) if self.attachments_from else ()

    def server(self, base: Path) -> Server:
        return Server(
            self.host,
            self.port or PORTS[self.security],
            self.security,
            self.username,
            self.password.get_secret_value() if self.password is not None else None,
            self.timeout_ms / 1000,
            str(base / self.ca_file) if self.ca_file else None,
            self.verify_tls,
        )

    def build(self, base: Path) -> Sink:
        from signoff.sinks.email.digest import EmailDigestSink
        from signoff.sinks.email.sink import EmailSink

        return EmailSink(self, base) if self.digest is None else EmailDigestSink(self, base)
