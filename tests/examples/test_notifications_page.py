"""The pipeline of docs/notifications.md sends what the page says."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.mail_server import PASSWORD, MailServer
from tests.promises.product import Inline
from tests.servers import WebhookServer

PAGE = (Path(__file__).parents[2] / "docs" / "notifications.md").read_text()
_BLOCK = re.compile(
    r"^```\w+ (?P<kind>\w+)(?:=(?P<where>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)

pytestmark = [pytest.mark.spark, pytest.mark.servers]


def test_the_pipeline_of_the_page_notifies_everybody(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    blocks = {block["kind"]: block for block in _BLOCK.finditer(PAGE)}
    product = Inline(tmp_path, spark)
    with MailServer(tmp_path) as server, WebhookServer("/hook/abcdefgh") as slack, WebhookServer() as sms:
        for name, value in {
            "SMTP_HOST": "localhost",
            "SMTP_PORT": server.port,
            "SMTP_CA_FILE": server.ca_file,
            "SMTP_PASSWORD": PASSWORD,
            "SLACK_WEBHOOK": slack.url,
            "SMS_URL": sms.url,
            "SMS_TOKEN": "token-of-the-sms-service",
        }.items():
            monkeypatch.setenv(name, str(value))
        product.write(blocks["pipeline"]["text"])
        input_file = product.directory / blocks["file"]["where"]
        input_file.parent.mkdir()
        input_file.write_text(blocks["file"]["text"])
        done = product.run_once()
        assert done.code == 0, done.output
        mails = {tuple(mail.recipients): mail for mail in server.mails}
        messages = [json.loads(request.body) for request in slack.requests]
        texts = [json.loads(request.body) for request in sms.requests]
    product.close()
    assert str(mails["anna@example.com",].message["Subject"]) == "S-17 failed 6 times"
    assert "<b>&lt;S-18&gt;</b> failed 9 times since 2021-05-01T10:05:00Z." in mails["ben@example.com",].html
    digest = mails["desk@example.com", "night@example.com"]
    assert str(digest.message["Subject"]) == "2 alerts"
    assert digest.text.splitlines() == [
        "2021-05-01T10:00:00Z  S-17  6 failures",
        "2021-05-01T10:05:00Z  <S-18>  9 failures",
    ]
    assert [message["text"] for message in messages] == [
        ":rotating_light: *S-17* failed 6 times",
        ":rotating_light: *&lt;S-18&gt;* failed 9 times",
    ]
    expected = {"to": "+358407654321", "text": "<S-18> failed 9 times", "reference": "incoming/1"}
    assert texts == [expected]
