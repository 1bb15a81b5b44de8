"""Mails and messages to people: acknowledged when they are taken, known again when they are repeated."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from tests.mail_server import PASSWORD, MailServer, TakenMail
from tests.promises.product import HTTP, SOON, Product
from tests.servers import WebhookServer

pytestmark = [pytest.mark.spark, pytest.mark.servers]
WEBHOOK = "services/T0123/B4567/abcdefghijklmnop"


class Notified:
    """One run with a sink of each kind. The engine is killed when the mail server has taken the first mail
    and has not said so; the digest is sent when the run ends."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.server = MailServer(directory)
        self.slack, self.sms = WebhookServer(f"/{WEBHOOK}"), WebhookServer()
        self.slack.answer(429, times=1, headers={"Retry-After": "1"})
        mail = self.server.fields(input="alerts", retry=SOON)
        self.product = Product(
            directory,
            sources={"incoming": {**HTTP, "acknowledge_within": "15m"}},
            transforms={
                "alerts": {"type": "parse_json", "input": "incoming", "schema": "station STRING, n INT"}
            },
            sinks={
                "mail": {**mail, "subject": "{{ station }} failed", "html": "<b>{{ station }}</b>"},
                "digest": {**mail, "subject": "{{ count }} alerts", "digest": {"every": "10m"}},
                "chat": {
                    "type": "slack",
                    "input": "alerts",
                    "url": self.slack.url,
                    "text": "*{{ station }}* failed {{ n }} times",
                    "interval_ms": 200,
                },
                "sms": {
                    "type": "http",
                    "input": "alerts",
                    "url": self.sms.url,
                    "form": {"To": "+358401234567", "Body": "{{ station }} failed"},
                },
            },
        )

    def run(self) -> None:
        product, server = self.product, self.server
        for one in (server, self.slack, self.sms):
            one.__enter__()
        server.rules(hold=True)
        running = product.start()
        self.first = product.post([{"station": f"S{n}", "n": n} for n in range(3)])
        running.wait_for(lambda: server.mails)
        self.early = self.first.done()
        product.kill9(product.engine_pid())
        server.rules()
        self.second = product.post([{"station": "<S&3>", "n": 3}])
        running.wait_for(
            lambda: {str(one.message["Subject"]) for one in self.alerts} >= {f"S{n} failed" for n in range(3)}
        )
        running.wait_for(
            lambda: len({one.id for one in self.alerts}) == 4 and product.received("digest.buffer") == 4
        )
        running.wait_for(lambda: len({request.body for request in self.slack.requests}) == 4)
        self.before_the_end = [self.first.done(), self.second.done(), len(self.digests)]
        self.ended = running.terminate()

    @property
    def alerts(self) -> list[TakenMail]:
        return [mail for mail in self.server.mails if str(mail.message["Subject"]).endswith(" failed")]

    @property
    def digests(self) -> list[TakenMail]:
        return [mail for mail in self.server.mails if str(mail.message["Subject"]).endswith(" alerts")]

    def close(self) -> None:
        self.product.close()
        for one in (self.server, self.slack, self.sms):
            one.__exit__()


@pytest.fixture(scope="module")
def notified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notified]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    scene = Notified(tmp_path_factory.mktemp("notified"))
    try:
        scene.run()
        yield scene
    finally:
        scene.close()


def test_a_mail_that_was_taken_when_the_engine_was_killed_is_repeated_under_its_id(
    notified: Notified,
) -> None:
    by_event: dict[str, list[TakenMail]] = {}
    for mail in notified.alerts:
        by_event.setdefault(str(mail.message["X-Signoff-Event"]), []).append(mail)
    assert sorted(by_event) == [f"incoming/{n}" for n in range(4)]
    assert len(by_event["incoming/0"]) >= 2 or len(notified.alerts) > 4, "the kill came before the record"
    assert all(len({mail.id for mail in mails}) == 1 for mails in by_event.values())
    assert "<b>&lt;S&amp;3&gt;</b>" in by_event["incoming/3"][0].html
    assert all(mail.secure for mail in notified.alerts)


def test_an_alert_is_acknowledged_when_everybody_has_it_and_not_before(notified: Notified) -> None:
    assert not notified.early and notified.before_the_end == [False, False, 0]
    assert [answer.result().status_code for answer in (notified.first, notified.second)] == [200, 200]
    assert notified.product.account()["delivered"] == 4


def test_a_digest_holds_what_came_since_the_last_one_and_goes_out_when_the_run_ends(
    notified: Notified,
) -> None:
    assert notified.ended.code == 0
    assert {str(mail.message["Subject"]) for mail in notified.digests} == {"4 alerts"}
    assert len({mail.id for mail in notified.digests}) == 1
    assert all(f"event_id: incoming/{n}" in notified.digests[0].text for n in range(4))


def test_slack_gets_each_message_in_order_after_the_pause_it_asks_for(notified: Notified) -> None:
    taken = [request for request in notified.slack.requests if request.status == 200]
    texts = [request.rows[0]["text"] for request in taken]
    assert list(dict.fromkeys(texts)) == [
        *(f"*S{n}* failed {n} times" for n in range(3)),
        "*&lt;S&amp;3&gt;* failed 3 times",
    ]
    refused = next(request for request in notified.slack.requests if request.status == 429)
    assert min(request.at for request in taken) - refused.at >= 0.99


def test_sms_are_forms_and_no_secret_is_in_any_file_of_the_run(notified: Notified) -> None:
    sent: set[Any] = {tuple(parse_qsl(request.body.decode())) for request in notified.sms.requests}
    assert (("To", "+358401234567"), ("Body", "<S&3> failed")) in sent and len(sent) == 4
    for file in notified.product.directory.rglob("*"):
        if file.is_file() and file.name != "pipeline.yaml" and "mail" not in file.parts:
            content = file.read_bytes()
            assert PASSWORD.encode() not in content and WEBHOOK.encode() not in content, file
