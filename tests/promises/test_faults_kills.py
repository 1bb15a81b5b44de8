"""Cases 24 to 26: SIGKILL of any process, at any moment."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.promises.product import SPARK, Product
from tests.servers import WebhookServer, free_port, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(900)]

ROWS = {"type": "parse_json", "schema": "n BIGINT"}
QUICK = {"initial_ms": 50, "max_ms": 200}
JSON = {"Content-Type": "application/json"}
PATIENT = {"type": "http", "timeout_ms": 900_000}
"""Asks again only when a process is killed, however long that takes to come."""


def jsonl(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()
    ]


def table(path: Path, name: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as db:
        found = db.execute(f"SELECT * FROM {name}").fetchall()
    db.close()
    return found


class Counted:
    """A SQLite table that counts how often each row is written: an upsert hides that."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with sqlite3.connect(path) as db:
            db.executescript(
                "CREATE TABLE events (event_id TEXT PRIMARY KEY, n INTEGER);"
                "CREATE TABLE writes (event_id TEXT);"
                "CREATE TRIGGER a AFTER INSERT ON events BEGIN INSERT INTO writes VALUES (new.event_id); END;"
                "CREATE TRIGGER b AFTER UPDATE ON events BEGIN INSERT INTO writes VALUES (new.event_id); END;"
            )
        db.close()

    @property
    def writes(self) -> list[str]:
        return [row[0] for row in table(self.path, "writes")]


class Killed:
    """One run with two sources. The JVM is killed, then the workers, while both have a batch
    with one sink done and one whose request has arrived, but has no answer; `plain` has receipts,
    `seen` (where a duplicate waits) has none."""

    def __init__(self, directory: Path) -> None:
        self.hooks = {"done": WebhookServer(), "held": WebhookServer(), "also_held": WebhookServer()}
        for hook in self.hooks.values():
            hook.up()
        directory.mkdir(parents=True, exist_ok=True)
        self.plain, self.seen = Counted(directory / "plain.db"), Counted(directory / "seen.db")
        self.product = Product(
            directory,
            sources={
                "plain": {"type": "files", "path": "plain/*.jsonl", "on_acknowledge": "move"},
                "seen": {"type": "http", "port": free_port(), "acknowledge_within": "15m"},
            },
            transforms={
                "plain_rows": {**ROWS, "input": "plain"},
                "seen_rows": {**ROWS, "input": "seen"},
                "once": {"type": "dedupe", "input": "seen_rows", "keys": ["n"]},
            },
            sinks={
                "table": {"type": "sqlite", "input": "plain_rows", "path": "plain.db", "table": "events"},
                "done": {"type": "http", "input": "plain_rows", "url": self.hooks["done"].url},
                "archive": {"type": "files", "input": "plain_rows", "path": "out"},
                "held": {**PATIENT, "input": "plain_rows", "url": self.hooks["held"].url},
                "seen_table": {"type": "sqlite", "input": "once", "path": "seen.db", "table": "events"},
                "also_held": {**PATIENT, "input": "once", "url": self.hooks["also_held"].url},
            },
            spark={**SPARK, "master": "local[4]"},  # three tasks are held at a time
        )
        self.moved = directory / "plain" / "acknowledged" / "1.jsonl"

    def run(self) -> None:
        product = self.product
        holds = [self.hooks["held"].hold(), self.hooks["also_held"].hold()]
        product.put("1.jsonl", [{"n": n} for n in range(5)], folder="plain")
        running = product.start()
        self.answer = product.post([{"n": 1}, {"n": 2}, {"n": 1}], source="seen", headers=JSON)
        receipts = product.state / "receipts"
        done = {"table", "done", "archive"}
        running.wait_for(lambda: done <= {f.name.split(".")[0] for f in receipts.rglob("*.arrow")})
        running.wait_for(lambda: holds[0].held and holds[1].held and len(self.seen.writes) == 2)
        self.early = [self.moved.exists(), self.answer.done(), *_settled(product)]
        asked = len(self.hooks["held"].requests), len(self.hooks["also_held"].requests)
        product.kill9(product.jvm_pid())
        running.wait_for(lambda: self._asked_again(*asked) and len(self.seen.writes) >= 4)
        asked = len(self.hooks["held"].requests), len(self.hooks["also_held"].requests)
        for pid in product.python_worker_pids():
            with suppress(psutil.NoSuchProcess):
                product.kill9(pid)
        running.wait_for(lambda: self._asked_again(*asked) and len(self.seen.writes) >= 6)
        self.still_early = [self.moved.exists(), self.answer.done(), *_settled(product)]
        for hold in holds:
            hold.release()
        running.wait_for(lambda: product.told_upto("plain") == 5 and self.answer.done())
        self.ended = running.terminate()

    def _asked_again(self, held: int, also_held: int) -> bool:
        hooks = self.hooks
        return len(hooks["held"].requests) > held and len(hooks["also_held"].requests) > also_held

    def close(self) -> None:
        for hook in self.hooks.values():
            hook.__exit__()
        self.product.close()


def _settled(product: Product) -> list[int]:
    return [product.settled_upto("plain"), product.settled_upto("seen")]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    scene = Killed(tmp_path_factory.mktemp("killed"))
    try:
        scene.run()
        yield scene
    finally:
        scene.close()


@pytest.mark.case(26)
def test_only_the_sink_that_had_not_finished_is_written_after_a_kill(killed):
    ids = [f"plain/{n}" for n in range(5)]
    assert sorted(killed.plain.writes) == ids, "the table was written once, before the kill"
    assert sorted(id_ for r in killed.hooks["done"].requests for id_ in r.ids) == ids
    assert [row["event_id"] for row in jsonl(killed.product.directory / "out")] == ids
    assert set(killed.hooks["held"].accepted_ids) == set(ids)


@pytest.mark.case(25, 41)
def test_a_write_that_was_not_recorded_is_repeated_and_shows_one_row(killed):
    writes = killed.seen.writes
    assert set(writes) == {"seen/0", "seen/1"} and len(writes) >= 6, "written again after each kill"
    assert sorted(table(killed.seen.path, "events")) == [("seen/0", 1), ("seen/1", 2)]
    held = killed.hooks["also_held"].requests
    assert {r.headers["idempotency-key"] for r in held} == {"seen/0", "seen/1"}
    assert len(held) > 2, "the request that had no answer came again, under its old key"


@pytest.mark.case(24)
def test_nothing_is_acknowledged_before_the_record_whatever_is_killed(killed):
    assert killed.early == killed.still_early == [False, False, 0, 0]
    assert killed.moved.exists() and killed.answer.result().status_code == 200


@pytest.mark.case(24, 38, 41)
def test_the_account_of_a_killed_run_adds_up(killed):
    assert killed.ended.code == 0
    assert killed.product.account("plain")["delivered"] == 5
    account = killed.product.account("seen")
    assert (account["delivered"], account["dropped"], account["in_flight"]) == (2, 1, 0)


# -- at random moments, under load

EVENTS_A_FILE = 600
FILES_A_ROUND = 7
REQUESTS_A_ROUND = 8
EVENTS_A_REQUEST = 25
MALFORMED = 97
"""Every so many-th line of a file is no JSON."""
KILLS = ["worker", "intake incoming", "engine", "intake posted", "run"]


class Load:
    """Files, and HTTP clients that ask again until their events are acknowledged."""

    def __init__(self, product: Product, port: int) -> None:
        self.product, self.url = product, f"http://127.0.0.1:{port}/"
        self.lines = self.posted = 0
        self.acknowledged: set[int] = set()
        self.files: dict[str, int] = {}
        """The sequence after the last event, by name."""
        self._clients = ThreadPoolExecutor(4)
        self._over = threading.Event()
        self._pending: list[Any] = []

    def add(self) -> None:
        for _ in range(FILES_A_ROUND):
            numbers = range(self.lines, self.lines + EVENTS_A_FILE)
            lines = ["{broken" if n % MALFORMED == 0 else json.dumps({"n": n}) for n in numbers]
            self.lines += EVENTS_A_FILE
            name = f"{self.lines:06}.jsonl"
            self.files[name] = self.lines
            self.product.put(name, lines)
        for _ in range(REQUESTS_A_ROUND):
            numbers = range(self.posted, self.posted + EVENTS_A_REQUEST)
            self.posted += EVENTS_A_REQUEST
            self._pending.append(self._clients.submit(self._post, list(numbers)))

    def _post(self, numbers: list[int]) -> None:
        body = json.dumps([{"n": n} for n in numbers])
        while not self._over.is_set():
            try:
                answer = httpx.post(self.url, content=body, headers=JSON, timeout=300, trust_env=False)
            except httpx.HTTPError:
                self._over.wait(0.05)
                continue
            if answer.status_code == 200:
                self.acknowledged |= set(numbers)
                return
            assert answer.status_code == 503, answer.text

    def finish(self) -> None:
        for one in self._pending:
            one.result(600)

    def close(self) -> None:
        self._over.set()
        self._clients.shutdown(cancel_futures=True)


@pytest.fixture
def load(tmp_path: Path, webhook: WebhookServer) -> Iterator[Load]:
    port = free_port()
    product = Product(
        tmp_path,
        sources={
            "incoming": {
                "type": "files", "path": "in/*.jsonl", "on_acknowledge": "move", "max_events_per_batch": 1500,
            },
            "posted": {"type": "http", "port": port, "acknowledge_within": "5m"},
        },
        transforms={"rows": {**ROWS, "inputs": ["incoming", "posted"]}},
        sinks={
            "table": {"type": "sqlite", "input": "rows", "path": "events.db", "table": "events"},
            "archive": {"type": "files", "input": "rows", "path": "out"},
            "hook": {
                "type": "http", "input": "rows", "url": webhook.url, "mode": "ndjson", "retry": QUICK,
            },
        },
    )  # fmt: skip
    load = Load(product, port)
    yield load
    load.close()
    product.close()


@pytest.mark.case(24)
def test_every_event_is_settled_once_whatever_is_killed_at_whatever_moment(load, webhook):
    seed = int(os.environ.get("SIGNOFF_KILL_SEED", random.SystemRandom().randrange(10**6)))
    print(f"SIGNOFF_KILL_SEED={seed}")
    chance = random.Random(seed)
    product = load.product
    running = product.start()
    kills, moment = list(KILLS), threading.Event()
    chance.shuffle(kills)
    for what in kills:
        load.add()
        goal = product.settled_upto() + chance.randrange(1, EVENTS_A_FILE * 2)
        goal = min(goal, load.lines)
        running.wait_for(lambda goal=goal: product.settled_upto() >= goal)
        moment.wait(chance.uniform(0, 0.4))  # not just after a record: anywhere in the next batch
        running = _kill(what, product, running)
        _assert_only_settled_files_are_moved(load)
    load.finish()
    running.wait_for(lambda: product.told_upto() == load.lines)
    running.wait_for(lambda: product.settled_upto("posted") == product.received("posted"))
    assert running.terminate().code == 0
    _assert_exactly_once(load, webhook)


def _kill(what: str, product: Product, running: Any) -> Any:
    if what == "run":
        running.kill9()
        return product.start()
    kind, _, source = what.partition(" ")
    find = {
        "engine": product.engine_pid,
        "jvm": product.jvm_pid,
        "worker": lambda: next(iter(product.python_worker_pids()), None),
        "intake": lambda: product.intake_pid(source),
    }[kind]
    product.kill9(running.wait_for(find))
    return running


def _assert_only_settled_files_are_moved(load: Load) -> None:
    moved = [path.name for path in (load.product.directory / "in" / "acknowledged").glob("*.jsonl")]
    settled = load.product.settled_upto()
    assert all(load.files[name] <= settled for name in moved)


def _assert_exactly_once(load: Load, webhook: WebhookServer) -> None:
    product, directory = load.product, load.product.directory
    assert load.lines + load.posted >= 20_000
    bad = {n for n in range(load.lines) if n % MALFORMED == 0}
    incoming, posted = product.account(), product.account("posted")
    assert incoming["received"] == load.lines and incoming["in_flight"] == posted["in_flight"] == 0
    assert (incoming["delivered"], incoming["dead_lettered"]) == (load.lines - len(bad), len(bad))
    assert posted["delivered"] == posted["received"] >= load.posted

    expected = {f"incoming/{n}": n for n in range(load.lines) if n not in bad}
    rows = dict(table(directory / "events.db", "events"))
    of_files = {id_: n for id_, n in rows.items() if id_.startswith("incoming/")}
    of_posts = {id_: n for id_, n in rows.items() if id_.startswith("posted/")}
    assert of_files == expected, "each event of a file once, under its own id, and nothing invented"
    assert set(of_posts) == {f"posted/{n}" for n in range(posted["received"])}
    assert load.acknowledged == set(of_posts.values()) == set(range(load.posted))

    archived = [(row["event_id"], row["n"]) for row in jsonl(directory / "out")]
    assert len(archived) == len(dict(archived)) and dict(archived) == rows, "the files hold the same, once"
    assert set(webhook.accepted_ids) == set(rows)
    assert {letter["event_id"] for letter in product.dead_letters()} == {f"incoming/{n}" for n in bad}
    assert len(list((directory / "in" / "acknowledged").glob("*.jsonl"))) == len(load.files)
    wait_until(lambda: not list((product.state / "receipts").glob("*")), what="no receipts left")
