"""Mails: who gets what over which connection, what an answer of the server means, what is never sent."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from signoff.errors import PermanentError, TransientError
from signoff.pipeline.model import Retry
from signoff.pipeline.secrets import reveal
from signoff.sinks.contract import EVENT_ID, Part, Refusal, RunRef, Sink
from signoff.sinks.email.config import EmailSinkConfig
from signoff.sinks.retry import deliver
from signoff.testing.conformance.rows import batch_ref, every_type, numbered, places, write_batch, write_part
from tests.mail_server import PASSWORD, MailServer
from tests.servers import free_port

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailServer]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    with MailServer(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.fixture
def server(running: MailServer) -> MailServer:
    running.empty()
    return running


def sink_for(server: MailServer, base: Path = Path(), **fields: Any) -> Sink:
    sink: Sink = EmailSinkConfig.model_validate(server.fields(**fields)).build(base)
    return sink


def texts(*values: str | None, **columns: Any) -> pa.RecordBatch:
    ids = [f"incoming/{number}" for number in range(len(values))]
    return pa.record_batch({EVENT_ID: ids, "text": pa.array(values, pa.string()), **columns})


def outcome(refusals: list[Refusal]) -> list[tuple[int, bool]]:
    return [(one.index, one.transient) for one in refusals]


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_mails_go_over_tls_with_a_login(server: MailServer, security: str) -> None:
    port = server.port if security == "starttls" else server.tls_port
    sink = sink_for(server, port=port, security=security)
    sink.prepare()
    assert write_batch(sink, numbered(2)) == []
    first, second = server.mails
    assert first.secure and second.secure
    assert (first.sender, first.recipients) == ("alarms@example.com", ["noc@example.com"])
    assert first.text == "event_id: incoming/0\nnumber: 0\ntext: row 0\n"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"password": "wrong-password-123"}, "535"),
        ({"ca_file": None}, "CERTIFICATE_VERIFY_FAILED"),
        ({"host": "127.0.0.1", "port": 1}, "refused"),
        ({"port": "open"}, "STARTTLS"),
    ],
)
def test_wrong_login_or_server_keeps_rows_and_never_falls_back_to_an_open_connection(
    server: MailServer, fields: dict[str, Any], said: str
) -> None:
    fields = {**fields, "port": server.open_port} if fields.get("port") == "open" else fields
    sink = sink_for(server, **fields)
    with pytest.raises(TransientError, match=said) as raised:
        sink.prepare()
    refusals = write_batch(sink, numbered(3))
    assert outcome(refusals) == [(0, True), (1, True), (2, True)]
    for text in (str(raised.value), *(one.reason for one in refusals)):
        assert PASSWORD not in text and "wrong-password-123" not in text
    assert server.mails == []


def test_password_is_shown_nowhere(server: MailServer) -> None:
    config = EmailSinkConfig.model_validate(server.fields())
    server.rules(data=f"550 your password is {PASSWORD}")
    (refusal,) = write_batch(config.build(Path()), numbered(1))
    for text in (refusal.reason, repr(config), config.model_dump_json()):
        assert PASSWORD not in text
    assert EmailSinkConfig.model_validate(reveal(config)) == config
    pickle.loads(pickle.dumps(config.build(Path())))


def test_subject_texts_and_recipients_come_from_the_row(server: MailServer) -> None:
    sink = sink_for(
        server,
        to=["{{ owner }}", "Duty <duty@example.com>", "{{ others }}"],
        cc="{{ boss }}",
        bcc="archive@example.com",
        reply_to="desk@example.com",
        subject="Ünit {{ text }}",
        text="Text: {{ text }}",
        html="<b>{{ text }}</b>",
        headers={"X-Priority": "1"},
    )
    others = pa.array([["x@example.com", "y@example.com"]], pa.list_(pa.string()))
    rows = texts("7", owner=["Jörg <joerg@exämple.com>"], others=others, boss=pa.array([None], pa.string()))
    assert write_batch(sink, rows) == []
    (mail,) = server.mails
    assert mail.recipients == [
        "joerg@xn--exmple-cua.com",
        "duty@example.com",
        "x@example.com",
        "y@example.com",
        "archive@example.com",
    ]
    message = mail.message
    assert str(message["Subject"]) == "Ünit 7" and "Jörg" in str(message["To"])
    assert message["Cc"] is None and message["Bcc"] is None and b"archive@" not in mail.content
    assert (message["Reply-To"], message["X-Priority"], message["Auto-Submitted"]) == (
        "desk@example.com",
        "1",
        "auto-generated",
    )
    assert (mail.text, mail.html) == ("Text: 7\n", "<b>7</b>\n")


def test_markup_of_a_row_is_text_in_html(server: MailServer) -> None:
    hostile = "<script>alert(1)</script>\r\n.\r\nQUIT {{ 7*7 }} \0"
    assert write_batch(sink_for(server, html="<p>{{ text }}</p>", text="{{ text }}"), texts(hostile)) == []
    (mail,) = server.mails
    assert "<script" not in mail.html and "&lt;script&gt;" in mail.html
    assert mail.text == "<script>alert(1)</script>\n.\nQUIT {{ 7*7 }} �\n"


@pytest.mark.parametrize(
    "hostile", ["a\r\nBcc: evil@example.com", "a\nb", "a\rb", "a\0b", "a\u2028b", "a\x85b"]
)
def test_row_that_would_add_a_header_is_refused_and_sends_nothing(server: MailServer, hostile: str) -> None:
    (refusal,) = write_batch(sink_for(server, subject="{{ text }}"), texts(hostile))
    assert not refusal.transient and refusal.reason.startswith(
        "subject: it has a line end or another control"
    )
    (refusal,) = write_batch(sink_for(server, to="{{ text }}@example.com"), texts(hostile))
    assert not refusal.transient and refusal.reason.startswith("to: ")
    assert server.mails == []
    assert write_batch(sink_for(server, subject="{{ text | one_line }}"), texts(hostile)) == []
    (mail,) = server.mails
    assert mail.recipients == ["noc@example.com"] and mail.message["Bcc"] is None


@pytest.mark.parametrize(
    "address",
    [
        "a@example.com, evil@example.com",
        "evil@example.com>, <b@example.com",
        "group: a@example.com;",
        "a",
        "a@b c",
    ],
)
def test_one_text_is_never_several_recipients(server: MailServer, address: str) -> None:
    (refusal,) = write_batch(sink_for(server, to=["noc@example.com", "{{ text }}"]), texts(address))
    assert not refusal.transient and "is not one address" in refusal.reason
    assert server.mails == []


def test_row_without_a_recipient_and_one_a_template_fails_for_are_refused_alone(server: MailServer) -> None:
    sink = sink_for(server, to="{{ text }}", subject="{{ 6 // n }}")
    rows = texts("a@example.com", None, "b@example.com", n=pa.array([1, 2, 0]))
    refusals = write_batch(sink, rows)
    assert outcome(refusals) == [(1, False), (2, False)]
    assert [one.reason for one in refusals] == [
        "it has no recipient",
        "subject: integer division or modulo by zero",
    ]
    assert [mail.recipients for mail in server.mails] == [["a@example.com"]]


def test_4xx_is_asked_for_again_and_5xx_is_not_by_recipient(server: MailServer) -> None:
    server.rules(rcpt={"full@example.com": "452 no room", "gone@example.com": "550 nobody here"})
    sink = sink_for(server, to=["ok@example.com", "{{ text }}"])
    rows = texts("fine@example.com", "full@example.com", "gone@example.com")
    refusals = write_batch(sink, rows)
    assert outcome(refusals) == [(1, True), (2, False)]
    assert "full@example.com: 452 no room (1 of 2 recipients have it)" in refusals[0].reason
    assert "gone@example.com: 550 nobody here (1 of 2 recipients have it)" in refusals[1].reason


def test_only_those_who_have_no_mail_yet_are_sent_one_again(server: MailServer) -> None:
    server.rules(rcpt={"full@example.com": "452 no room", "gone@example.com": "550 nobody here"})
    everybody = ["ok@example.com", "full@example.com", "gone@example.com"]
    writer = sink_for(server, to=everybody, subject="partly").open(Part(batch_ref(), 0, 0))
    assert outcome(list(writer.write(numbered(1)))) == [(0, True)], "one of them may still get it"
    server.rules(rcpt={"gone@example.com": "550 nobody here"})
    (refusal,) = writer.write(numbered(1))
    writer.close()
    assert not refusal.transient and "gone@example.com: 550" in refusal.reason
    first, second = server.mails
    assert (first.recipients, second.recipients) == (["ok@example.com"], ["full@example.com"])
    assert first.id == second.id


def test_another_worker_knows_who_has_the_mail_and_another_run_asks_everybody(
    server: MailServer, tmp_path: Path
) -> None:
    """Spark hands a row that is tried again to any Python worker."""
    server.rules(rcpt={"full@example.com": "452 no room"})
    fields = {"to": ["ok@example.com", "full@example.com"], "subject": "partly"}
    runs = [RunRef(f"{tmp_path}/{number}", bounded=False) for number in range(2)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as worker:
        for run in (runs[0], runs[0], runs[1]):
            sink = sink_for(server, **fields)
            sink.begin(run)
            (refusal,) = worker.submit(write_batch, sink, numbered(1)).result()
            assert refusal.transient
    server.rules()
    sink = sink_for(server, **fields)
    sink.begin(runs[0])
    assert write_batch(sink, numbered(1)) == []
    assert write_batch(sink, numbered(1)) == [], "everybody has it: what comes again is a repeat"
    ok, full = ["ok@example.com"], ["full@example.com"]
    assert [mail.recipients for mail in server.mails] == [ok, ok, full, ok + full]
    assert len({mail.id for mail in server.mails}) == 1


@pytest.mark.parametrize("code", [530, 535])
def test_5xx_of_one_recipient_is_never_said_of_the_account(server: MailServer, code: int) -> None:
    no = f"{code} 5.7.1 Authentication required to relay"
    server.rules(rcpt={"a@outside.org": no, "b@outside.org": no, "c@outside.org": no})
    sink = sink_for(server, to=["inside@example.com", "{{ text }}"], subject=f"answered {code}")
    refusals = write_batch(sink, texts("a@outside.org", "b@outside.org", "c@outside.org", "fine@example.com"))
    assert outcome(refusals) == [(0, False), (1, False), (2, False)]
    inside = [mail for mail in server.mails if "inside@example.com" in mail.recipients]
    assert len(inside) == len(server.mails) == 4, "each row's mail is handed over once"


@pytest.mark.parametrize("field", ["to", "subject"])
def test_an_endless_address_or_subject_is_its_row_s_failure_at_once(server: MailServer, field: str) -> None:
    fields = {"to": "{{ text }}"} if field == "to" else {"to": "noc@example.com", "subject": "{{ text }}"}
    began = time.process_time()
    endless = ('"' if field == "to" else "é") * 1_000_000
    refusals = write_batch(sink_for(server, **fields), texts(endless))
    assert outcome(refusals) == [(0, False)] and "1,000,000 characters" in refusals[0].reason
    assert time.process_time() - began < 20, "its library takes hours for it"
    assert len(refusals[0].reason) < 1000


@pytest.mark.parametrize(("answer", "transient"), [("451 try later", True), ("554 this is spam", False)])
def test_answer_to_the_mail_itself_is_that_of_its_row(
    server: MailServer, answer: str, transient: bool
) -> None:
    server.rules(data=answer)
    refusals = write_batch(sink_for(server), numbered(2))
    assert outcome(refusals) == [(0, transient), (1, transient)]
    assert answer in refusals[0].reason


def test_repeat_is_the_same_mail_with_the_same_id_and_other_events_have_others(
    server: MailServer, tmp_path: Path
) -> None:
    fields = {"html": "<i>{{ text }}</i>", "text": "{{ text }}"}
    for _ in range(2):
        write_batch(sink_for(server, tmp_path, **fields), numbered(2))
    write_batch(sink_for(server, tmp_path / "elsewhere", **fields), numbered(1))
    write_batch(sink_for(server, tmp_path, **fields), numbered(1, text="another"))
    write_batch(sink_for(server, tmp_path, **{**fields, "to": "b@example.com"}), numbered(1))
    ids = [mail.id for mail in server.mails]
    assert ids[:2] == ids[2:4] and len(set(ids)) == 5
    assert ids[0].startswith("<incoming.0.") and ids[0].endswith("@example.com>")
    same = [
        [line for line in mail.content.splitlines() if not line.startswith(b"Date:")]
        for mail in (server.mails[0], server.mails[2])
    ]
    assert same[0] == same[1]


def test_files_and_columns_are_attached(server: MailServer, tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "day.pdf").write_bytes(b"%PDF-1.7 \0\r\n.\r\n")
    sink = sink_for(
        server,
        tmp_path,
        attachments_from="reports",
        attachments=[
            {"path": "{{ text }}"},
            {"column": "raw", "name": "räw {{ event_id | replace('/', '-') }}.bin"},
            {"column": "note", "name": "note.csv", "content_type": "text/csv"},
        ],
    )
    rows = texts(
        "day.pdf", None, raw=pa.array([bytes(range(256)), None], pa.binary()), note=pa.array(["a,b", None])
    )
    assert write_batch(sink, rows) == []
    first, second = server.mails
    found = [
        (one.get_filename(), one.get_content_type(), one.get_payload(decode=True))
        for one in first.message.iter_attachments()
    ]
    assert found == [
        ("day.pdf", "application/pdf", b"%PDF-1.7 \0\r\n.\r\n"),
        ("räw incoming-0.bin", "application/octet-stream", bytes(range(256))),
        ("note.csv", "text/csv", b"a,b"),
    ]
    assert not list(second.message.iter_attachments())


def test_no_file_is_attached_from_elsewhere_and_one_that_is_missing_is_waited_for(
    server: MailServer, tmp_path: Path
) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "reports" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "reports" / "large").write_bytes(bytes(101))
    sink = sink_for(
        server,
        tmp_path,
        attachments_from="reports",
        attachments=[{"path": "{{ text }}"}],
        max_attachment_bytes=100,
    )
    bad = ["../secret", "/etc/passwd", "link", "a\0b", "large", "x" * 5000]
    refusals = write_batch(sink, texts(*bad, "later.pdf"))
    assert outcome(refusals) == [
        (0, False),
        (1, False),
        (2, False),
        (3, False),
        (4, False),
        (5, True),
        (6, True),
    ]
    assert "is not below" in refusals[0].reason and "later.pdf" in refusals[6].reason
    assert server.mails == []


def test_files_of_a_report_are_attached_if_they_are_those_that_the_row_means(
    server: MailServer, tmp_path: Path
) -> None:
    """A row gets at no file whose content its maker does not know, and mails none of another edition."""
    sink = sink_for(server, tmp_path, attachments=[{"column": "files"}], max_attachment_bytes=100)
    contents = {"day.pdf": b"%PDF-1.7", "day.json": b"{}", "large": bytes(101)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "fifo")

    def file(name: str, content: bytes | None = None) -> dict[str, str]:
        known = hashlib.sha256(contents.get(name, b"") if content is None else content).hexdigest()
        return {"path": str(tmp_path / name), "sha256": known}

    files: list[Any] = [
        [file("day.pdf"), {**file("day.json"), "path": "day.json"}], [], None,
        [file("day.pdf", b"of the day before")], [file("fifo")], [file("large")], [{"path": "day.pdf"}],
        [file("gone.pdf")],
    ]  # fmt: skip
    kind = pa.list_(pa.struct({"path": pa.string(), "sha256": pa.string()}))
    refusals = write_batch(sink, texts(*map(str, range(8)), files=pa.array(files, kind)))
    assert outcome(refusals) == [(3, False), (4, False), (5, False), (6, False), (7, True)]
    assert "it has another checksum" in refusals[0].reason and "gone.pdf" in refusals[4].reason
    found = [[one.get_filename() for one in mail.message.iter_attachments()] for mail in server.mails]
    assert found == [["day.pdf", "day.json"], [], []]


def test_digest_is_one_mail_for_a_batch_with_the_same_id_when_it_is_done_again(server: MailServer) -> None:
    sink = sink_for(server, subject="{{ count }} rows", digest={"max_rows": 3})
    assert sink.atomic
    rows = numbered(5)
    parts = [write_part(sink, rows.slice(3 * n, 3), batch_ref(), n)[1] for n in (1, 0)]
    assert server.mails == [], "nothing is sent before all tasks are done"
    for _ in range(2):
        sink.commit(batch_ref(), [part for part in parts if part is not None])
    sink.commit(batch_ref(10, 20), [])
    first, second = server.mails
    assert first.id == second.id and first.id.startswith("<incoming.000000000000.000000000010.")
    assert str(first.message["Subject"]) == "5 rows"
    assert "event_id: incoming/2" in first.text and "… and 2 more" in first.text
    assert "incoming/3" not in first.text


def test_digest_fails_as_a_whole(server: MailServer) -> None:
    sink = sink_for(server, digest={})
    server.rules(rcpt={"noc@example.com": "452 no room"})
    with pytest.raises(TransientError, match="452 no room"):
        write_batch(sink, numbered(2))
    server.rules(rcpt={"noc@example.com": "550 nobody here"})
    with pytest.raises(PermanentError, match="550 nobody here"):
        write_batch(sink, numbered(2))
    whole = sink_for(server, digest={}, subject="{{ 1 / (2 - count) }}")
    with pytest.raises(PermanentError, match="subject: division by zero"):
        write_batch(whole, numbered(2))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ({"text": "{% for r in rows %}{{ r.text }}={{ 8 / r.n }} {% endfor %}"}, "text: division by zero"),
        ({"html": "{% for r in rows %}{{ r.text }} {{ 8 / r.n }}{% endfor %}"}, "html: division by zero"),
        ({"subject": "{{ count }}, the last {{ rows[-1].line }}"}, "subject: it has a line end"),
        ({"to": "{{ rows[-1].who }}"}, "to: 'nobody' is not one address"),
        ({"to": "{{ rows[-1].blank }}"}, "it has no recipient"),
    ],
)
def test_a_row_that_no_digest_can_show_is_refused_alone(
    server: MailServer, template: dict[str, str], said: str
) -> None:
    """Wherever it is, also where the mail would show it in another place than the first or last."""
    sink = sink_for(server, digest={"max_rows": 3}, **template)
    rows = texts(
        *("zero", "one", "odd", "three", "four"),
        n=pa.array([1, 2, 0, 4, 0]),
        line=["a", "a", "a\nb", "a", "a\nb"],
        who=["a@example.com", "a@example.com", "nobody", "b@example.com", "nobody"],
        blank=["a@example.com", "a@example.com", " ", "b@example.com", " "],
    )
    written, part = write_part(sink, rows, batch_ref())
    assert outcome(written) == [(2, False)], "the last one is not shown, and only counted"
    assert said in written[0].reason
    assert part is not None
    sink.commit(batch_ref(), [part])
    (mail,) = server.mails
    if "text" in template:
        assert mail.text.split()[:3] == ["zero=8.0", "one=4.0", "three=2.0"]
    if "subject" in template:
        assert str(mail.message["Subject"]) == "4, the last a"


def test_a_batch_of_nothing_but_rows_that_no_digest_can_show_is_refused_and_no_mail(
    server: MailServer,
) -> None:
    sink = sink_for(server, digest={}, subject="{{ 1 / 0 }}")
    refusals, part = write_part(sink, numbered(2), batch_ref())
    assert [(one.index, one.reason) for one in refusals] == [
        (0, "subject: division by zero"),
        (1, "subject: division by zero"),
    ]
    assert part is None and server.mails == []


@pytest.mark.parametrize("subject", ["{{ rows[1].text }}", "{{ 1 / (count - 1) }}", "{{ 1 / more }}"])
def test_a_template_for_several_rows_refuses_none_of_them(server: MailServer, subject: str) -> None:
    sink = sink_for(server, digest={"max_rows": 2}, subject=subject)
    assert write_batch(sink, numbered(3)) == []
    assert len(server.mails) == 1


def test_values_of_every_type_have_a_text(server: MailServer) -> None:
    assert write_batch(sink_for(server), every_type()) == []
    assert "a_decimal: 12345678901234567890.123456789012345678" in server.mails[0].text
    assert 'a_struct: {"x": 1, ' in server.mails[0].text


def test_server_that_is_killed_in_the_middle_loses_no_row_and_repeats_keep_their_ids(
    running: MailServer, server: MailServer
) -> None:
    rows = numbered(60)
    writer = sink_for(server, timeout_ms=5_000).open(Part(batch_ref(0, 60), 0, 0))
    done: list[Any] = []

    def write() -> None:
        done.append(deliver(writer, rows, Retry(initial_ms=20, max_ms=100), budget_s=60))

    thread = threading.Thread(target=write)
    thread.start()
    for taken in (10, 30):
        server.wait_for(taken)
        running.kill()
        running.start()
    thread.join()
    writer.close()
    assert places(done[0].taken) == list(range(60)) and not done[0].refused
    by_event: dict[str, set[str]] = {}
    for mail in server.mails:
        by_event.setdefault(str(mail.message["X-Signoff-Event"]), set()).add(mail.id)
    assert len(by_event) == 60 and all(len(ids) == 1 for ids in by_event.values())


def test_server_that_is_down_costs_few_tries(server: MailServer) -> None:
    refusals = write_batch(sink_for(server, port=free_port()), numbered(100))
    assert outcome(refusals) == [(index, True) for index in range(100)]
    assert "not sent: " in refusals[99].reason


def test_server_that_answers_a_letter_at_a_time_is_left_when_the_time_is_up(server: MailServer) -> None:
    with closing(socket.create_server(("localhost", 0), family=socket.AF_INET)) as slow:

        def trickle() -> None:
            with suppress(OSError):
                connection, _ = slow.accept()
                with connection:
                    while not threading.Event().wait(0.05):
                        connection.send(b"2")

        thread = threading.Thread(target=trickle)
        thread.start()
        sink = sink_for(server, host="127.0.0.1", port=slow.getsockname()[1], timeout_ms=500)
        with pytest.raises(TransientError, match="it took too long"):
            sink.prepare()
        thread.join()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"to": []}, "nobody to send it to"),
        ({"to": "a, b"}, "is not one address"),
        ({"from": "x\r\ny@example.com"}, "is not one address"),
        ({"password": None}, "go together"),
        ({"security": "none"}, "in the open"),
        ({"password": "pässword"}, "not ASCII"),
        ({"headers": {"Bcc": "x@example.com"}}, "further header"),
        ({"headers": {"X-A": "x\r\nBcc: y"}}, "control character"),
        ({"attachments": [{"path": "x"}]}, "attachments_from"),
        ({"attachments": [{"path": "x", "column": "y"}]}, "either a path or a column"),
        ({"attachments": [{"column": "y", "content_type": "x\r\ny"}]}, "no content type"),
        ({"subject": "{{ x"}, "line 1 of the template"),
        ({"digest": {}, "subject": "{{ stationId }}"}, "a digest knows rows, count and more"),
        ({"digest": {}, "attachments": [{"column": "y"}]}, "no column to attach"),
    ],
)
def test_what_cannot_work_is_an_error_of_the_file(
    server: MailServer, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        EmailSinkConfig.model_validate(server.fields(**fields))


def test_columns_that_templates_name_are_known(server: MailServer) -> None:
    config = EmailSinkConfig.model_validate(
        server.fields(to="{{ a }}", text="{{ b }}", attachments=[{"column": "c", "name": "{{ d }}"}])
    )
    assert config.named_columns() == {"a": "to", "b": "text", "c": "attachments", "d": "attachments"}
