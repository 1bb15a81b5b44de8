"""A connection to a mail server: greeted, encrypted, logged in.

Invariants: a password goes over an encrypted connection only; a server that offers no STARTTLS when that is
asked for is not talked to. A mail is over after the timeout, however slowly the other side answers. What the
server says of a recipient is that recipient's alone; what it says of the mail is said of all recipients.
"""

from __future__ import annotations

import smtplib
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Literal

from signoff.errors import TransientError
from signoff.pipeline.secrets import excerpt

Security = Literal["starttls", "tls", "none"]
PORTS: Mapping[Security, int] = {"starttls": 587, "tls": 465, "none": 25}
_READY = 220
_CLOSING = 421
_LOGIN = (530, 534, 535, 538)
"""Of the sender or of the mail: about the account, and rows wait until somebody has put that right. Of a
recipient: about that recipient, as any other 5xx."""
_SAID = 200


@dataclass(frozen=True, slots=True)
class Server:
    """Where mails are handed over."""

    host: str
    port: int
    security: Security
    username: str | None
    password: str | None
    timeout_s: float
    ca_file: str | None
    verify_tls: bool

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class SmtpReply:
    """What the server said when it did not take a mail for somebody."""

    code: int
    text: str

    @property
    def permanent(self) -> bool:
        return 500 <= self.code < 600

    def __str__(self) -> str:
        return f"{self.code} {self.text}"


class Session:
    """One connection. Every method may raise TransientError; the connection is of no use after that."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._smtp = _client(server)
        try:
            with self._bounded():
                self._greet()
        except BaseException:
            self.drop()
            raise

    def send(self, sender: str, recipients: Sequence[str], content: bytes) -> dict[str, SmtpReply]:
        """Hand a mail over, and return those it was not taken for. When it raises, nobody has the mail."""
        with self._bounded():
            try:
                said = self._smtp.sendmail(sender, list(recipients), content)
            except smtplib.SMTPRecipientsRefused as error:
                said = error.recipients
            except (smtplib.SMTPSenderRefused, smtplib.SMTPDataError) as error:
                answer = _reply(error.smtp_code, error.smtp_error)
                if answer.code in (_CLOSING, *_LOGIN):
                    raise TransientError(f"{self._server}: {answer}") from error
                return dict.fromkeys(recipients, answer)
        answers = {one: _reply(*answer) for one, answer in said.items()}
        for answer in answers.values():
            if answer.code == _CLOSING:  # smtplib hands nothing over then
                raise TransientError(f"{self._server}: {answer}")
        return answers

    def close(self) -> None:
        """Say goodbye, and wait for no answer for long."""
        with suppress(OSError, smtplib.SMTPException, TransientError), self._bounded():
            self._smtp.quit()
        self.drop()

    def drop(self) -> None:
        with suppress(OSError, smtplib.SMTPException):
            self._smtp.close()

    def _greet(self) -> None:
        server = self._server
        code, text = self._smtp.connect(server.host, server.port)
        if code != _READY:
            raise smtplib.SMTPConnectError(code, text)
        self._smtp.ehlo_or_helo_if_needed()
        if server.security == "starttls":
            self._smtp.starttls(context=_context(server))
            self._smtp.ehlo()
        if server.username is not None and server.password is not None:
            self._smtp.login(server.username, server.password)

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """Cut the connection when the time is up: smtplib bounds each wait, and not all of them together."""
        late = threading.Event()

        def cut() -> None:
            late.set()
            with suppress(OSError, AttributeError):  # it may be gone, or not be there yet
                self._smtp.sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]

        timer = threading.Timer(self._server.timeout_s, cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (OSError, smtplib.SMTPException, ValueError) as error:
            said = "it took too long" if late.is_set() else _words(error)
            raise TransientError(f"{self._server}: {said}") from error
        finally:
            timer.cancel()


def _client(server: Server) -> smtplib.SMTP:
    """Not connected yet: the time that takes is bounded, too."""
    made: smtplib.SMTP
    if server.security == "tls":
        made = smtplib.SMTP_SSL(
            local_hostname=_own_name(), timeout=server.timeout_s, context=_context(server)
        )
    else:
        made = smtplib.SMTP(local_hostname=_own_name(), timeout=server.timeout_s)
    made._host = server.host  # type: ignore[attr-defined]  # what the certificate must name
    return made


def _context(server: Server) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=server.ca_file)
    if not server.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@cache
def _own_name() -> str:
    """Looked up once: without a resolver each time takes seconds."""
    name = socket.getfqdn()
    return name if "." in name and name.isascii() else "[127.0.0.1]"


def _words(error: Exception) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        return str(_reply(error.smtp_code, error.smtp_error))
    return excerpt(str(error) or type(error).__name__, _SAID)


def _reply(code: int, text: bytes | str) -> SmtpReply:
    said = _bytes(text).decode("utf-8", "replace")
    return SmtpReply(code, excerpt(" ".join(said.split()), _SAID))


def _bytes(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "replace")
