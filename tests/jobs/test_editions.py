"""A report of a job, handed to those that read it: mailed, posted, published when it is there, and once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from signoff.errors import PipelineError
from signoff.jobs.run import load_job
from tests.brokers import RabbitMQ
from tests.jobs.scenes import JOB, job_run, records, write_job, write_results
from tests.mail_server import MailServer
from tests.servers import WebhookServer

DAY = {"day": "2021-05-02"}
REPORT = {
    "type": "report", "input": "by_station", "path": "./out/daily", "formats": ["html", "json"],
    "title": "{count(by_station)} stations",
}  # fmt: skip
QUERY = {"by_station": JOB["transforms"]["by_station"]}
SOON = {"initial_ms": 50, "max_ms": 200}
RUN = "failures@day=2021-05-02#{}"


@pytest.fixture
def mail_server(tmp_path: Path) -> Iterator[MailServer]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    with MailServer(tmp_path) as server:
        yield server


def mail(server: MailServer, **more: Any) -> dict[str, Any]:
    fields = {"input": "daily", "attachments": [{"column": "files"}], "subject": "{{ title }}", "retry": SOON}
    return server.fields(**{**fields, **more})


def job_with(directory: Path, **sinks: Any) -> Path:
    write_results(directory / "results.db")
    return write_job(directory, transforms=QUERY, sinks={"daily": REPORT, **sinks})


@pytest.mark.spark
@pytest.mark.servers
def test_a_run_is_done_when_everybody_has_its_report_and_the_next_one_is_another_edition(
    tmp_path: Path, spark: SparkSession, mail_server: MailServer, rabbitmq: RabbitMQ
) -> None:
    rabbitmq.declare_queue("reports", "classic")
    rabbitmq.purge("reports")
    with WebhookServer("/services/T0/B1/secret") as slack:
        slack.answer(429, times=1, headers={"Retry-After": "1"})
        file = job_with(
            tmp_path,
            post={"type": "slack", "input": "daily", "url": slack.url, "interval_ms": 0, "retry": SOON,
                  "text": "{{ title }} on {{ parameters.day }}: {{ rows }} rows, {{ paths.html }}"},
            desk=mail(mail_server),
            queue={"type": "rabbitmq", "input": "daily", "url": rabbitmq.url, "routing_key": "'reports'"},
        )  # fmt: skip
        mail_server.kill()
        assert job_run(file, spark, DAY, patience_s=2.0).execute() == 3
        (record,) = records(tmp_path)
        assert record.state == "delivering" and 'sink "desk"' in record.reason, record.reason
        assert (tmp_path / "out/daily.html").exists(), "it waits with the report, and not before it"

        mail_server.start()
        (tmp_path / "out/daily.json").unlink()  # somebody took it away: it is made again, of the same bytes
        assert job_run(file, spark, DAY).execute() == 0
        (record,) = records(tmp_path)
        assert (record.state, record.edition, record.outputs["daily.editions"].rows) == ("done", 1, 1)
        (taken,) = mail_server.mails
        (said,) = rabbitmq.take("reports")
        row = json.loads(said.body)
        attached = {part.get_filename(): part.get_content() for part in taken.message.iter_attachments()}
        assert taken.secure and taken.message["Subject"] == "5 stations"
        assert [each["name"] for each in row["files"]] == ["daily.html", "daily.json"] == list(attached)
        for each in row["files"]:
            content = Path(each["path"]).read_bytes()
            assert (each["bytes"], each["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
        assert json.loads(attached["daily.json"]) == json.loads((tmp_path / "out/daily.json").read_text())
        assert (row["name"], row["run"], row["rows"]) == ("daily", RUN.format(1), 5)
        assert (row["parameters"]["day"], row["complete_to"]) == ("2021-05-02", "2021-05-03T03:00:00Z")
        posted = [request.rows[0]["text"] for request in slack.requests if request.status == 200]
        assert posted == [f"5 stations on 2021-05-02: 5 rows, {tmp_path}/out/daily.html"]

        assert job_run(file, spark, DAY).execute() == 0  # asked for again: another edition, for everybody
        (again,) = rabbitmq.take("reports")
        assert json.loads(again.body)["run"] == RUN.format(2)
        assert [said.id, again.id] == [f"daily/{RUN.format(1)}", f"daily/{RUN.format(2)}"]
        assert len({each.id for each in mail_server.mails}) == 2 == len(mail_server.mails)
        assert len([request for request in slack.requests if request.status == 200]) == 2


KILLED = """
import os, signal, sys
from signoff.jobs import deliver, editions
from signoff.jobs.records import Records
change, put = Records.change, editions.put
def killed_before_its_record(self, record, **fields):
    handed_over = any(name.endswith(".editions") for name in fields.get("outputs", ()))
    if (sys.argv[2] == "published" and handed_over) or fields.get("state") == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    return change(self, record, **fields)
def killed_before_the_log(*arguments):
    if sys.argv[2] == "recorded":
        os.kill(os.getpid(), signal.SIGKILL)
    return put(*arguments)
Records.change, editions.put = killed_before_its_record, killed_before_the_log
from signoff.cli import app
app(["jobs", "run", sys.argv[1], "-p", "day=2021-05-02"])
"""


@pytest.mark.spark
@pytest.mark.crash
def test_kills_between_the_report_and_its_mail_leave_one_mail_of_this_edition_and_repeats_of_it(
    tmp_path: Path, spark: SparkSession, mail_server: MailServer
) -> None:
    file = job_with(tmp_path, desk=mail(mail_server))
    for moment, mails in (("published", 0), ("recorded", 0), ("taken", 1), ("done", 2)):
        mail_server.rules(hold=moment == "taken")
        command = [sys.executable, "-c", KILLED, str(file), moment]
        process = subprocess.Popen(command, start_new_session=True)
        if moment == "taken":  # and the server has not said so
            mail_server.wait_for(1)
            os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(timeout=300) == -signal.SIGKILL
        assert (records(tmp_path)[0].state, len(mail_server.mails)) == ("delivering", mails), moment
    published = (tmp_path / "out/daily.json").read_bytes()
    # Another day has the same path. What is owed goes first, so each mail has the files of its own run.
    assert job_run(file, spark, {"day": "2021-05-01"}).execute() == 0
    assert job_run(file, spark, DAY, waits=True).execute() == 0
    taken, first, other, second = mail_server.mails
    assert taken.id == first.id, "it is sent again, and known again"
    contents = [next(iter(reversed([*each.message.iter_attachments()]))) for each in (first, other, second)]
    assert json.loads(contents[0].get_content()) == json.loads(published)
    assert len({content.get_content() for content in contents}) == 3
    assert {(each.id, each.state, each.edition) for each in records(tmp_path)} == {
        (RUN.format(1), "done", 1), (RUN.format(2), "done", 2), ("failures@day=2021-05-01#1", "done", 1),
    }  # fmt: skip


@pytest.mark.spark
@pytest.mark.servers
def test_a_mail_that_is_refused_fails_the_run_and_a_mail_that_was_taken_is_repeated_under_its_id(
    tmp_path: Path, spark: SparkSession, mail_server: MailServer
) -> None:
    some = {"type": "filter", "input": "daily", "where": "rows > 0"}
    none = {"type": "filter", "input": "daily", "where": "rows = 0"}
    write_results(tmp_path / "results.db")
    file = write_job(
        tmp_path,
        transforms={**QUERY, "some": some, "none": none},
        sinks={
            "daily": REPORT,
            "desk": mail(mail_server, input="some", on_failure="refuse"),
            "nobody": mail(mail_server, input="none", to="empty@example.com"),
        },
    )
    mail_server.rules(rcpt={"noc@example.com": "550 no such user"})
    assert job_run(file, spark, DAY).execute() == 3
    (record,) = records(tmp_path)
    assert (record.state, record.outcome["refused"]) == ("failed", 1)

    mail_server.rules(data="451 later")  # of the edition that the next try makes
    assert job_run(file, spark, DAY, patience_s=1.0).execute() == 3
    mail_server.rules()
    assert job_run(file, spark, DAY).execute() == 0
    assert [record.id for record in records(tmp_path)] == [RUN.format(2), RUN.format(1)]
    assert [each.recipients for each in mail_server.mails] == [["noc@example.com"]]
    assert RUN.format(2) in mail_server.mails[0].text


@pytest.mark.spark
@pytest.mark.servers
def test_the_next_try_of_a_failed_run_repeats_equal_rows_under_their_ids_and_others_under_new_ones(
    tmp_path: Path, spark: SparkSession, mail_server: MailServer
) -> None:
    """Two rows are alike: each keeps an id of its own. A row is gone, one is new, and so is their order."""
    write_results(tmp_path / "results.db")
    query = """
        SELECT n, stationId FROM (SELECT explode(sequence(1, 5)) AS n) CROSS JOIN
        (SELECT DISTINCT stationId FROM results WHERE stationId IN (2, 3, 4)) WHERE n > 3 OR stationId < 4
        UNION ALL SELECT 0, 0 UNION ALL SELECT 0, 0 ORDER BY stationId, n
    """
    gone = query.replace("n > 3", "n > 4").replace("stationId, n", "n DESC, stationId")
    with WebhookServer() as web:
        sinks = {
            "desk": mail(mail_server, input="rows", attachments=[], subject="{{ stationId }}/{{ n }}"),
            "web": {"type": "http", "input": "rows", "url": web.url},
            "strict": {
                "type": "http",
                "input": "rows",
                "url": web.url,
                "headers": {"X-Strict": "1"},
                "on_failure": "refuse",
            },
        }
        web.answer(400, lambda one: "x-strict" in one.headers and b'"n":5,"stationId":3' in one.body)

        def ids(**changes: Any) -> dict[tuple[int, int], set[str]]:
            del web.requests[:]
            mail_server.empty()
            rows = {"rows": {"type": "sql", "input": "results", "query": changes.pop("query", query)}}
            file = write_job(tmp_path, transforms=rows, sinks={**sinks, **changes})
            job_run(file, spark, DAY).execute()
            found: dict[tuple[int, int], set[str]] = {}
            for request in web.requests:
                if "x-strict" not in request.headers:
                    (row,) = request.rows
                    found.setdefault((row["stationId"], row["n"]), set()).add(row["event_id"])
            assert len(mail_server.mails) == sum(map(len, found.values()))
            return found

        first, mails = ids(), {str(each.message["Subject"]): each.id for each in mail_server.mails}
        assert records(tmp_path)[0].state == "failed" and len(first[0, 0]) == 2
        assert ids() == first and records(tmp_path)[0].edition == 2
        second = ids(query=gone)
        assert {row: second[row] for row in second.keys() & first.keys()} == {
            row: first[row] for row in second.keys() & first.keys()
        }
        assert first.keys() - second.keys() == {(4, 4)}
        for each in mail_server.mails:
            if str(each.message["Subject"]) != "0/0":
                assert each.id == mails[str(each.message["Subject"])]
        third = ids()  # what was gone is there again, and is what it was
        assert third == first
        # Another message is no repeat: this sink says something else now, and the mail does not.
        other = ids(web={**sinks["web"], "headers": {"X-Version": "2"}})
        assert all(other[row].isdisjoint(first[row]) for row in first)
        assert {str(each.message["Subject"]): each.id for each in mail_server.mails}["3/4"] == mails["3/4"]
        web.answer(200, lambda request: True)
        assert ids().keys() == first.keys() and records(tmp_path)[0].state == "done"
        again = ids()  # asked for once more: these are new
        assert all(again[row].isdisjoint(first[row]) for row in first)
        assert not list((tmp_path / "state/jobs").glob("*.ids"))


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"sinks": {"mail": {"attachments": [{"path": "daily.html"}]}}}, "own-report", "attaches daily.html"),
        ({"sinks": {"mail": {"attachments": [{"path": "./{{ name }}.html"}]}}}, "own-report", "daily.html"),
        ({"sinks": {"mail": {"attachments": [{"path": "pictures/{{ name }}.png"}]}}}, "", ""),
        ({"sinks": {"mail": {"input": "daily", "attachments": [{"path": "daily.html"}]}}}, "", ""),
        ({"sinks": {"copy": {**REPORT, "input": "daily", "path": "./copy", "title": "x"}}}, "unknown-input",
         "is published itself"),
        ({"transforms": {"more": {"type": "sql", "input": "daily", "query": "SELECT 1"}},
          "sinks": {"s": {"type": "console", "input": "more"}}}, "job-node", "neither a table nor a query"),
        ({"sinks": {"s": {"type": "console", "input": "other"},
                    "other": {"type": "console", "input": "by_station"}}},
         "unknown-input", "which is a sink"),
        ({"parameters": {}, "key": [], "sources": {"results": {"type": "files", "path": "./in/*.jsonl"}},
          "transforms": {"by_station": {"type": "filter", "input": "results", "where": "true"}},
          "sinks": {"s": {"type": "console", "input": "daily"}}}, "unknown-input", "this is no job"),
    ],
)  # fmt: skip
def test_what_cannot_read_a_report_or_wait_for_it_is_refused(
    tmp_path: Path, changes: dict[str, Any], code: str, said: str
) -> None:
    about = {"host": "localhost", "from": "a@example.com", "to": "b@example.com", "subject": "s"}
    plain = {"type": "email", "input": "by_station", "attachments_from": "./out", **about}
    sinks = {
        name: {**plain, **fields} if name == "mail" else fields for name, fields in changes["sinks"].items()
    }
    transforms = changes.get("transforms", {})
    if "key" not in changes:
        transforms = {**QUERY, **transforms}
    file = write_job(tmp_path, **{**changes, "transforms": transforms, "sinks": {"daily": REPORT, **sinks}})
    if not code:
        load_job(file)
        return
    with pytest.raises(PipelineError) as caught:
        load_job(file)
    found = [each for each in caught.value.problems if each.code == code and said in each.message]
    assert found and all(each.line for each in found), caught.value.problems
    assert code != "own-report" or "input: daily" in found[0].hint
