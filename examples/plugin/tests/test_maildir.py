"""The source `maildir` keeps the contract that Signoff's own sources keep; what becomes of a mail."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from signoff_maildir.message import payload_of
from signoff_maildir.source import MaildirConfig

from signoff.errors import SourceError
from signoff.testing import SourceConformance, SourceOffer, received


class MaildirOffer(SourceOffer):
    reads_again = False
    """Without a log to look into, it gives again what was in it."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        for name in ("new", "cur", "tmp"):
            (base / "Maildir" / name).mkdir(parents=True)

    def config(self) -> MaildirConfig:
        return MaildirConfig(path="Maildir", poll_ms=5)

    def payload(self, number: int) -> bytes:
        return payload_of(self._mail(number))[0]

    def offer(self, payloads: list[bytes]) -> None:
        for number in range(self.offered - len(payloads), self.offered):
            file = self.base / "Maildir" / "tmp" / f"{number}.mail"
            file.write_bytes(self._mail(number))
            os.utime(file, ns=(number, number))
            file.rename(self.base / "Maildir" / "new" / file.name)

    def got_back(self) -> int:
        return len([*self.base.glob("Maildir/cur/*:2,F")])

    def _mail(self, number: int) -> bytes:
        return f"From: Ann <ann@example.org>\nSubject: number {number}\n\nHello\n".encode()


class TestMaildir(SourceConformance):
    @pytest.fixture
    def offer(self, tmp_path: Path) -> SourceOffer:
        return MaildirOffer(tmp_path)


def test_a_settled_mail_is_seen(tmp_path: Path) -> None:
    offer = MaildirOffer(tmp_path)
    offer.put(2)
    events = received(offer.config(), tmp_path)
    assert [json.loads(event.payload)["subject"] for event in events] == ["number 0", "number 1"]
    assert sorted(file.name for file in tmp_path.glob("Maildir/*/*")) == ["0.mail:2,S", "1.mail:2,S"]


@pytest.mark.parametrize(
    "mail",
    [
        b"",
        b"\xff\xfe",
        b"Subject: =?utf-9?b?//?=\n\nx",
        b"Date: soon\nFrom: <\n\n",
        b"Content-Type: text/plain; charset=no\n\n\xe4",
    ],
)
def test_any_bytes_are_a_mail(mail: bytes) -> None:
    assert set(json.loads(payload_of(mail)[0])) == {"from", "to", "subject", "date", "text"}


def test_what_is_no_maildir_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is no Maildir"):
        received(MaildirConfig(path="nothing"), tmp_path)
