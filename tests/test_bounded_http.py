"""Requests that end, whatever the server at the other end does: a server that follows a script of bytes."""

# ruff: noqa: E501 - tables of cases

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpcore
import pyarrow as pa
import pytest
from pydantic import ValidationError

from signoff import bounded_http
from signoff.bounded_http import (
    NoAnswer,
    Reply,
    Unsendable,
    ask,
    client,
    json_elements,
    read_json,
    retry_after,
)
from signoff.sinks.contract import Part
from signoff.sinks.http import HttpSinkConfig
from signoff.testing.conformance.rows import batch_ref, numbered
from signoff.transforms.enrich.calls import Calls
from signoff.transforms.enrich.step import EnrichConfig
from signoff.transforms.row_results import RowResult, parse_result

Script = Callable[[socket.socket], None]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


@contextmanager
def served(script: Script) -> Iterator[str]:
    """A server that reads a request up to its headers' end, and then does what the script says."""
    over = threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        listening.settimeout(0.1)

        def serve(connection: socket.socket) -> None:
            with closing(connection), suppress(OSError):
                connection.settimeout(30)
                data = b""
                while b"\r\n\r\n" not in data:
                    data += connection.recv(65536) or b"\r\n\r\n"
                script(connection)

        def accept() -> None:
            while not over.is_set():
                with suppress(TimeoutError):
                    connection, _ = listening.accept()
                    threading.Thread(target=serve, args=[connection], daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            over.set()
            thread.join()


def drips(head: bytes) -> Script:
    """The head at once, and then a byte every 50 ms for as long as somebody listens."""

    def script(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            time.sleep(0.05)
            connection.sendall(b"x")

    return script


def sends(answer: bytes) -> Script:
    def script(connection: socket.socket) -> None:
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(65536)

    return script


def with_body(body: bytes, *headers: str, status: str = "200 OK") -> Script:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return sends("\r\n".join(head).encode("utf-8", "surrogateescape") + body)


def asked(script: Script, *, seconds: float = 30, most_bytes: int = 1000) -> Reply:
    with served(script) as url, client({}, verify_tls=False, connections=1) as by:
        return ask(by, "GET", url, seconds=seconds, most_bytes=most_bytes)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nX-Drip: "])
def test_an_answer_whose_headers_drip_is_given_up_at_the_deadline(head: bytes) -> None:
    began = time.monotonic()
    with pytest.raises(NoAnswer, match=r"took too long|timed out"):
        asked(drips(head), seconds=0.5)
    assert time.monotonic() - began < 20


def test_a_body_that_drips_leaves_its_status() -> None:
    reply = asked(drips(OK), seconds=0.5)
    assert reply.is_success and not reply.whole and reply.trouble


def test_a_request_that_is_read_slowly_is_given_up_at_the_deadline() -> None:
    with (
        served(lambda connection: time.sleep(5)) as url,
        client({}, verify_tls=False, connections=1) as by,
        pytest.raises(NoAnswer),
    ):
        ask(by, "POST", url, content=b"x" * 50_000_000, seconds=0.5, most_bytes=1)


class Silent:
    """Addresses that nobody answers at: a connection lasts as long as it may."""

    def __init__(self, answers: str = "") -> None:
        self.answers = answers
        self.spent: list[float] = []
        self.now = 0.0

    def connect_tcp(self, host: str, port: int, timeout: float, *more: Any) -> Any:
        if host == self.answers:
            return httpcore.MockStream([])
        self.spent.append(timeout)
        self.now += timeout
        raise httpcore.ConnectTimeout("timed out")


def test_all_addresses_of_a_name_together_have_the_time_of_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"192.0.2.{n}", 80)) for n in range(1, 6)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    for answers in ("", "192.0.2.5"):
        silent = Silent(answers)
        monkeypatch.setattr(bounded_http.time, "monotonic", lambda silent=silent: silent.now)
        monkeypatch.setattr(bounded_http._time, "deadline", 10.0)
        backend = bounded_http._Backend()
        monkeypatch.setattr(backend, "_inner", silent)
        if answers:
            backend.connect_tcp("many.example", 80, 10.0)
        else:
            with pytest.raises(httpcore.ConnectTimeout):
                backend.connect_tcp("many.example", 80, 10.0)
        assert len(silent.spent) == (4 if answers else 5)
        assert sum(silent.spent) <= 10.001


def test_a_name_that_has_no_address_is_no_answer() -> None:
    with client({}, verify_tls=False, connections=1) as by, pytest.raises(NoAnswer):
        ask(by, "GET", "http://no-such-name.invalid/", seconds=30, most_bytes=1)


def test_an_answer_is_read_up_to_its_bound() -> None:
    reply = asked(with_body(b"x" * 5000))
    assert (len(reply.body), reply.whole, reply.trouble) == (1000, False, "")
    assert asked(with_body(b"x" * 1000)).whole


def test_what_is_packed_is_unpacked_up_to_its_bound() -> None:
    small = gzip.compress(b"hello")
    assert asked(with_body(small, "Content-Encoding: gzip")).text == "hello"
    bomb = asked(with_body(gzip.compress(b"\0" * 50_000_000), "Content-Encoding: gzip"))
    assert (len(bomb.body), bomb.whole) == (1000, False)
    for wrong in (with_body(small[:-9], "Content-Encoding: gzip"), with_body(small, "Content-Encoding: br"),
                  with_body(b"no", "Content-Encoding: gzip")):  # fmt: skip
        assert asked(wrong).trouble


def test_what_is_packed_in_several_members_is_unpacked_to_its_end() -> None:
    two = gzip.compress(b'{"a": ') + gzip.compress(b"1}")
    for body in (two, two + bytes(512)):
        reply = asked(with_body(body, "Content-Encoding: gzip"))
        assert (reply.text, reply.whole, reply.trouble) == ('{"a": 1}', True, "")
    for wrong in (two[:-4], two + b"something else"):
        reply = asked(with_body(wrong, "Content-Encoding: gzip"))
        assert not reply.whole and reply.trouble
    bomb = asked(with_body(gzip.compress(b"\0" * 800) * 3, "Content-Encoding: gzip"))
    assert (len(bomb.body), bomb.whole) == (1000, False)


@pytest.mark.parametrize(
    "name", ["hex", "rot13", "base64", "zip", "idna", "undefined", "nonsense", "\ud800", "utf-16"]
)
def test_the_text_of_an_answer_can_be_had_whatever_its_charset_is_said_to_be(name: str) -> None:
    kind = f"text/plain; charset={name}".encode("utf-8", "replace").decode()
    reply = Reply(200, "OK", {"content-type": kind}, b"\xff\xfe\x00\xd8abc")
    assert reply.text.encode()


@pytest.mark.parametrize(
    ("name", "text"),
    [("punycode", "b-9"), ("idna", "b-9"), ("unicode_escape", "b-9"), ("utf-7", "b-9"), ("utf-16-le", "ⵢ9"),
     ("ISO-8859-1", "b-9"), ("windows-1252", "b-9"), ("Shift_JIS", "b-9"), ("cp1252" + "x" * 1000, "b-9"),
     ("koi8-r", "b-9")],
)  # fmt: skip
def test_a_text_is_decoded_only_by_what_is_a_charset_of_texts(name: str, text: str) -> None:
    body = b"b-9\0" if name == "utf-16-le" else b"b-9"
    reply = Reply(200, "OK", {"content-type": f"text/plain; charset={name}"}, body)
    assert reply.text == text


def test_umlauts_of_older_charsets_are_read() -> None:
    for name in ("iso-8859-1", "latin1", "windows-1252", "iso-8859-15", "utf-16", "gb18030"):
        kind = {"content-type": f"text/plain; charset={name}"}
        assert Reply(200, "OK", kind, "Zürich".encode(name)).text == "Zürich"


@pytest.mark.parametrize(
    "answer",
    [b"", b"\xff" * 100, b"HTTP/1.1 99999 x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000,
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
)  # fmt: skip
def test_what_is_no_http_is_no_answer(answer: bytes) -> None:
    try:
        reply = asked(sends(answer))
    except NoAnswer:
        return
    assert reply.trouble


@pytest.mark.parametrize(
    ("url", "headers", "content"),
    [("http://[::1", {}, None), ("ftp://h/", {}, None), ("no address", {}, None),
     ("http://h/" + "x" * 100_000, {}, None), ("", {"A": "ü\n"}, None),
     ("", {"A\n": "b"}, None), ("", {"A": "x\r\ny"}, None),
     ("", {}, "\ud800")],
)  # fmt: skip
def test_what_cannot_be_sent_is_said_so(url: str, headers: dict[str, str], content: Any) -> None:
    with (
        served(with_body(b"")) as there,
        client({}, verify_tls=False, connections=1) as by,
        pytest.raises(Unsendable),
    ):
        ask(by, "POST", url or there, headers=headers, content=content, seconds=30, most_bytes=1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3", 3.0), ("9" * 5000, float("inf")), ("-3", None), ("1e5", None), ("soon", None), ("", None), ("²", None),
     ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("Wed, 99 Oct 2015 07:28:00 GMT", None), (", , ,", None),
     ("Fri, 31 Dec 9999 23:59:59 -2359", None), ("Mon, 01 Jan 0001 00:00:00 +2359", None)],
)  # fmt: skip
def test_a_retry_after_is_seconds_a_time_or_nothing(text: str, seconds: float | None) -> None:
    now = datetime(2020, 1, 1, tzinfo=UTC)
    got = retry_after(Reply(503, "", {"retry-after": text}, b""), now)
    assert got == seconds or (seconds is None and (got or 0) >= 0)


def test_json_keeps_the_text_of_each_element() -> None:
    body = b' [ {"a": 1.0000000000000000000001} , ' + b"9" * 5000 + b', "\\ud800", null, [1, [2]] ] '
    elements = json_elements(body)
    assert elements is not None
    assert [text for _, text in elements] == [
        '{"a": 1.0000000000000000000001}', "9" * 5000, '"\\ud800"', "null", "[1, [2]]",
    ]  # fmt: skip
    assert json_elements(b'{"a": [1]}') is None and json_elements(b"[]") == []
    for wrong in (b"[1] x", b"[NaN]", b"[" * 100_000, b"\xff", b"", b"[1,]"):
        with pytest.raises(ValueError):
            read_json(wrong)


ODD_PLACES = [
    "mailto:ops@example.org", "http://xn--/", "http://[", "//h:99999999/", "http://" + "a" * 70 + ".com/", "ftp:///x", ":::",
]  # fmt: skip


@pytest.mark.parametrize("place", ODD_PLACES)
def test_where_an_answer_says_to_go_instead_changes_nothing_of_its_status(place: str) -> None:
    assert asked(with_body(b"moved", f"Location: {place}", status="302 Found")).status == 302


def test_a_cookie_is_not_sent_back() -> None:
    with (
        served(with_body(b"", "Set-Cookie: a=b")) as url,
        client({}, verify_tls=False, connections=1) as by,
    ):
        assert ask(by, "GET", url, seconds=30, most_bytes=1).headers["set-cookie"] == "a=b"
        assert "cookie" not in by.build_request("GET", url).headers


# -- as the sink and the step see it


def test_an_odd_redirect_refuses_the_row_that_got_it() -> None:
    answers = iter([b"200 OK", b"302 Found\r\nLocation: mailto:x", b"200 OK"])

    def script(connection: socket.socket) -> None:
        sends(b"HTTP/1.1 " + next(answers) + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")(
            connection
        )

    with served(script) as url:
        config = HttpSinkConfig.model_validate({"url": url, "concurrency": 1})
        writer = config.build(Path()).open(Part(batch_ref(), 0, 0))
        try:
            refusals = writer.write(numbered(3))
        finally:
            writer.close()
    assert [(one.index, one.transient) for one in refusals] == [(1, False)]


def test_rows_of_an_http_sink_wait_when_the_answer_drips_and_are_signed_for_by_a_status_that_came() -> None:
    def written(script: Script) -> list[Any]:
        with served(script) as url:
            fields = {"url": url, "timeout_ms": 500, "mode": "array"}
            writer = HttpSinkConfig.model_validate(fields).build(Path()).open(Part(batch_ref(), 0, 0))
            try:
                return [one.transient for one in writer.write(numbered(2))]
            finally:
                writer.close()

    assert written(drips(b"HTTP/1.1 200 OK\r\nX-Drip: ")) == [True, True]
    assert written(drips(OK)) == [], "the other side has said that it has them"
    assert written(drips(b"HTTP/1.1 401 No\r\nContent-Length: 9999\r\n\r\n")) == [False, False]


def test_an_id_that_no_header_can_hold_is_sent_all_the_same() -> None:
    rows = pa.record_batch({"event_id": ["a/ü\n"], "n": [1]})
    with served(with_body(b"")) as url:
        writer = HttpSinkConfig.model_validate({"url": url}).build(Path()).open(Part(batch_ref(), 0, 0))
        try:
            assert list(writer.write(rows)) == []
        finally:
            writer.close()


EVENT = pa.struct([pa.field("values", pa.list_(pa.string())), pa.field("body", pa.string())])


def enriched(script: Script, *bodies: str, **fields: Any) -> list[Any]:
    with served(script) as url:
        settings = {
            "url": url,
            "method": "POST",
            "body": ["id"],
            "into": "answer",
            "timeout_s": 0.5,
            "tries": 1,
            **fields,
        }
        calls = Calls(EnrichConfig.model_validate(settings), f"{url} {fields} {bodies}")
        events = pa.array([{"values": [], "body": body} for body in bodies], EVENT)
        rows = calls(events).to_pylist()
    return [parse_result(row["error"]) if row["error"] else row["text"] for row in rows]


@pytest.mark.parametrize("head", [b"", OK])
def test_events_wait_when_the_answer_about_them_drips(head: bytes) -> None:
    ((answer, _),) = enriched(drips(head), "{}")
    assert answer == RowResult.WAITS


@pytest.mark.parametrize(
    ("script", "fields", "expected"),
    [
        (with_body(b"x" * 2000), {"max_answer_bytes": 1000}, (RowResult.FAILED, "more than 1000 bytes")),
        (with_body(b"no", "Retry-After: Wed, 99 Oct", status="503 No"), {}, (RowResult.WAITS, "answered 503")),
        (with_body(b"\xff", "Content-Type: text/plain; charset=hex"), {}, "\ufffd"),
        (with_body(b'{"a": "\\ud800"}'), {"schema": "a STRING"}, '{"a": "\\ud800"}'),
        (with_body(b"[" * 100_000), {"schema": "a STRING"}, (RowResult.FAILED, "did not answer with JSON")),
        (with_body(b"", "Location: /", status="302 Found"), {}, (RowResult.FAILED, "answered 302")),
    ],
)  # fmt: skip
def test_an_odd_answer_is_the_failure_or_the_wait_of_its_event(
    script: Script, fields: Any, expected: Any
) -> None:
    (got,) = enriched(script, "{}", timeout_s=30, **fields)
    if isinstance(expected, tuple):
        assert got[0] == expected[0] and expected[1] in got[1]
    else:
        assert got == expected


def test_a_lone_surrogate_or_a_huge_number_in_an_answer_about_several_is_kept_as_it_was_sent() -> None:
    script = with_body(b'["\\ud800", ' + b"7" * 5000 + b", 0.10000000000000000000001]")
    assert enriched(script, "1", "2", "3", batch=3, timeout_s=30) == [
        '"\\ud800"',
        "7" * 5000,
        "0.10000000000000000000001",
    ]


def test_a_value_that_would_lead_to_another_address_is_the_failure_of_its_event() -> None:
    def about(path: str, *values: str) -> list[Any]:
        with served(with_body(b"yes")) as url:
            settings = {"url": url + path, "into": "answer", "timeout_s": 30, "tries": 1}
            calls = Calls(EnrichConfig.model_validate(settings), f"{url} {path} {values}")
            rows = calls(pa.array([{"values": list(values), "body": None}], EVENT)).to_pylist()
        return [parse_result(row["error"]) if row["error"] else row["text"] for row in rows]

    for value in ("..", ".", "%2e%2E", ".%2e"):
        ((answer, why),) = about("v1/stations/{id}/owner", value)
        assert answer == RowResult.FAILED and "names another address" in why
    ((answer, _),) = about("v1/{a}{b}", ".", ".")
    assert answer == RowResult.FAILED
    assert about("v1/{id}", "...") == about("v1/{id}", "a/../b") == about("v1/x?id={id}", "..") == ["yes"]
    assert about("v1/../v2/{id}", "7") == ["yes"], "what the file says is meant"


def test_an_event_whose_text_is_not_utf8_fails_alone() -> None:
    good = pa.array([{"values": [], "body": "{}"}], EVENT)
    bad = pa.StructArray.from_arrays(
        [pa.array([[]], pa.list_(pa.string())), pa.array([b"\xff"]).view(pa.string())], ["values", "body"]
    )
    with served(with_body(b"yes")) as url:
        settings = {"url": url, "method": "POST", "body": ["id"], "into": "answer"}
        rows = Calls(EnrichConfig.model_validate(settings), f"{url} utf8")(
            pa.concat_arrays([good, bad, good])
        ).to_pylist()
    assert [row["text"] for row in rows] == ["yes", None, "yes"]
    assert "not valid UTF-8" in rows[1]["error"] and json.dumps(rows)


def test_a_token_need_not_be_ascii() -> None:
    by = client({"Authorization": "Bearer schl\u00fcssel"}, verify_tls=False, connections=1)
    with closing(by):
        assert by.build_request("GET", "http://x/").headers.raw[-1] == (
            b"Authorization",
            "Bearer schl\u00fcssel".encode(),
        )


@pytest.mark.parametrize(
    "fields",
    [{"token": "a\nb"}, {"headers": {"X": "a\nb"}}, {"headers": {"": "a"}}, {"headers": {"X\u00e4": "a"}}],
)
def test_headers_that_cannot_be_sent_are_found_by_the_check_and_not_shown(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"control character|name of a header") as refused:
        HttpSinkConfig(url="http://x/", **fields)
    assert all("a\nb" not in error["msg"] for error in refused.value.errors())
    with pytest.raises(ValueError, match=r"control character|name of a header"):
        EnrichConfig(url="http://x/", into="x", **fields)
