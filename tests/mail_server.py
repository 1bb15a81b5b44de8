"""A real mail server in a process of its own, with STARTTLS, TLS and a login; it can be killed.

with MailServer(tmp_path) as server:
    server.rules(rcpt={"full@example.com": "452 no room"})
    ...                                # send to server.port, trusting server.ca_file
    server.mails                       # what it has taken, in order
    server.kill(); server.start()      # the same ports

Run as a program it is the server: rules and mails are files in its directory.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Literal, Self

from tests.servers import free_port, wait_until

USER, PASSWORD = "alarms", "correct-horse-battery"


@dataclass(frozen=True)
class TakenMail:
    sender: str
    recipients: list[str]
    secure: bool
    content: bytes

    @property
    def message(self) -> EmailMessage:
        made = message_from_bytes(self.content, policy=policy.default)
        assert isinstance(made, EmailMessage)
        return made

    @property
    def id(self) -> str:
        return str(self.message["Message-ID"]).strip()

    @property
    def text(self) -> str:
        return self._body("plain")

    @property
    def html(self) -> str:
        return self._body("html")

    def _body(self, kind: Literal["plain", "html"]) -> str:
        part = self.message.get_body((kind,))
        assert part is not None
        return str(part.get_content()).replace("\r\n", "\n")


class MailServer:
    def __init__(self, directory: Path) -> None:
        self.directory = directory / "mail"
        self.directory.mkdir()
        self.port, self.tls_port, self.open_port = free_port(), free_port(), free_port()
        self.ca_file = self.directory / "cert.pem"
        self._process: subprocess.Popen[bytes] | None = None
        _certificate(self.directory)
        self.rules()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        ports = [str(port) for port in (self.port, self.tls_port, self.open_port)]
        ready = self.directory / "ready"
        ready.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mail_server", str(self.directory), *ports],
            cwd=Path(__file__).parents[1],
        )
        wait_until(ready.exists, what="the mail server")

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def rules(self, **rules: Any) -> None:
        """`rcpt`: answers by recipient; `data`: the answer to every mail; `hold`: mails are taken, and the
        answer waits until that is over."""
        aside = self.directory / "rules.part"
        aside.write_text(json.dumps(rules))
        aside.rename(self.directory / "rules.json")

    def fields(self, **more: Any) -> dict[str, Any]:
        """Of a sink that sends to it."""
        return {
            "type": "email",
            "host": "localhost",
            "port": self.port,
            "username": USER,
            "password": PASSWORD,
            "ca_file": str(self.ca_file),
            "from": "Alarms <alarms@example.com>",
            "to": "noc@example.com",
            "subject": "row",
            **more,
        }

    def empty(self) -> None:
        """Forget all rules and mails."""
        self.rules()
        for file in self.directory.glob("*.mail"):
            file.unlink()

    @property
    def mails(self) -> list[TakenMail]:
        found = []
        for file in sorted(self.directory.glob("*.mail")):
            head, _, content = file.read_bytes().partition(b"\n")
            found.append(TakenMail(**json.loads(head), content=content))
        return found

    def wait_for(self, count: int) -> list[TakenMail]:
        wait_until(lambda: len(self.mails) >= count, what=f"{count} mails")
        return self.mails


def _certificate(directory: Path) -> None:
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    files = ["-keyout", "key.pem", "-out", "cert.pem"]
    command = ["openssl", "req", *kind, *files, "-subj", "/CN=localhost", "-addext", names]
    made = subprocess.run(command, cwd=directory, capture_output=True, check=False)
    assert made.returncode == 0, made.stderr


def _serve(directory: Path, ports: list[int]) -> None:
    import asyncio

    from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword

    def rules() -> dict[str, Any]:
        found: dict[str, Any] = json.loads((directory / "rules.json").read_text())
        return found

    class Handler:
        async def handle_RCPT(  # noqa: N802
            self, server: Any, session: Any, envelope: Any, address: str, options: Any
        ) -> str:
            if answer := rules().get("rcpt", {}).get(address):
                return str(answer)
            envelope.rcpt_tos.append(address)
            return "250 OK"

        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
            if answer := rules().get("data"):
                return str(answer)
            secure = session.ssl is not None or server.transport.get_extra_info("ssl_object") is not None
            head = {"sender": envelope.mail_from, "recipients": envelope.rcpt_tos, "secure": secure}
            name = f"{time.time_ns()}.mail"
            (directory / "part").write_bytes(json.dumps(head).encode() + b"\n" + envelope.content)
            (directory / "part").rename(directory / name)
            while rules().get("hold"):
                await asyncio.sleep(0.01)
            return "250 taken"

    def check(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        known = isinstance(data, LoginPassword) and data.login == USER.encode()
        return AuthResult(success=known and data.password == PASSWORD.encode(), handled=False)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    login = {"authenticator": check, "auth_required": True, "hostname": "mail.test"}

    async def serve() -> None:
        loop = asyncio.get_running_loop()

        def starttls() -> SMTP:
            return SMTP(Handler(), tls_context=context, require_starttls=True, loop=loop, **login)

        def tls() -> SMTP:
            return SMTP(Handler(), auth_require_tls=False, loop=loop, **login)

        def in_the_open() -> SMTP:
            return SMTP(Handler(), loop=loop, hostname="mail.test")

        await loop.create_server(starttls, "localhost", ports[0])
        await loop.create_server(tls, "localhost", ports[1], ssl=context)
        await loop.create_server(in_the_open, "localhost", ports[2])
        (directory / "ready").touch()
        parent = os.getppid()
        while os.getppid() == parent:  # killed with its test
            await asyncio.sleep(0.2)

    with suppress(KeyboardInterrupt):
        asyncio.run(serve())


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), [int(port) for port in sys.argv[2:]])
