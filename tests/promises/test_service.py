"""The service with real runs: pipelines that it starts go on without it, are found again, and are updated."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.promises.product import SPARK
from tests.servers import wait_until
from tests.service.served import Served, served

pytestmark = [pytest.mark.spark, pytest.mark.crash]


PIPELINES = int(os.environ.get("SIGNOFF_SERVICE_PIPELINES", "2"))
KILLS = int(os.environ.get("SIGNOFF_SERVICE_KILLS", "3"))
"""The suite's short form; the long one is 5 pipelines and 10 kills."""


def pipeline(name: str, directory: Path, **changes: Any) -> str:
    """Files to files."""
    content: dict[str, Any] = {
        "name": name,
        "spark": SPARK,
        "sources": {
            "incoming": {"type": "files", "path": f"{directory}/in/*.jsonl", "on_acknowledge": "move"}
        },
        "transforms": {"parsed": {"type": "parse_json", "input": "incoming", "schema": "n INT"}},
        "sinks": {"out": {"type": "files", "input": "parsed", "path": f"{directory}/out"}},
    }
    return str(yaml.safe_dump(content | changes, sort_keys=False))


def received(service: Served, name: str) -> int:
    status = service.ask("GET", f"/v1/pipelines/{name}/status").json()
    return int(status["sources"]["incoming"]["received"])


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "home") as found:
        yield found


class Feed:
    """Files of one event a line, put where a pipeline finds them, again and again."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.count = directory, 0
        (directory / "in").mkdir(parents=True)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def put(self, events: int = 10) -> None:
        place = self.directory / "in"
        lines = "".join(json.dumps({"n": self.count + number}) + "\n" for number in range(events))
        aside = place / f".{self.count}.part"
        aside.write_text(lines)
        aside.rename(place / f"{self.count:06}.jsonl")
        self.count += events

    def _go_on(self) -> None:
        while not self._over.wait(0.2):
            self.put()

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def delivered(self) -> list[int]:
        files = (self.directory / "out").glob("*.jsonl")
        return sorted(json.loads(line)["n"] for file in files for line in file.read_text().splitlines())


@pytest.mark.case(54)
def test_kills_of_the_service_interrupt_no_run_and_lose_nothing(service: Served, tmp_path: Path) -> None:
    feeds = {f"p{number}": Feed(tmp_path / f"p{number}") for number in range(PIPELINES)}
    for name, feed in feeds.items():
        assert service.put(name, pipeline(name, feed.directory)).status_code == 201
    pids = {name: service.wait_for(name, state="running")["pid"] for name in feeds}
    with ExitStack() as feeding:
        for feed in feeds.values():
            feeding.enter_context(feed)
        for _ in range(KILLS):
            before = {name: len(feed.delivered()) for name, feed in feeds.items()}
            service.kill9()
            for name, feed in feeds.items():
                wait_until(lambda: len(feed.delivered()) > before[name] + 20)  # noqa: B023
            service.start()
            for name, pid in pids.items():
                assert service.wait_for(name, state="running")["pid"] == pid
    for name, feed in feeds.items():
        wait_until(lambda: len(feed.delivered()) == feed.count)  # noqa: B023
        assert feed.delivered() == list(range(feed.count))
        wait_until(
            lambda: service.ask("GET", f"/v1/pipelines/{name}/audit").json()["balanced"]  # noqa: B023
        )
    page = service.ask("GET", "/metrics").text  # of all that run, as their accounts say it
    assert f'signoff_service_pipelines{{state="running"}} {PIPELINES}.0' in page
    for name, feed in feeds.items():
        assert f'signoff_events_received_total{{pipeline="{name}",source="incoming"}} {feed.count}.0' in page
    for name in feeds:
        assert service.ask("POST", f"/v1/pipelines/{name}/drain").status_code == 202
        service.wait_for(name, state="stopped")
    assert service.ask("GET", "/readyz").status_code == 200


@pytest.mark.case(54)
def test_a_run_that_is_killed_is_started_again_and_a_stopped_one_stays_stopped(
    service: Served, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "one")
    service.ask("PUT", "/v1/secrets/form", json={"value": "jsonl"})
    out = {"type": "files", "input": "parsed", "path": f"{feed.directory}/out", "format": "${secret:form}"}
    service.put("one", pipeline("one", feed.directory, sinks={"out": out}))
    first = service.wait_for("one", state="running")["pid"]
    assert not any("jsonl" in each for each in psutil.Process(first).environ().values())
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: service.show("one")["pid"] not in (None, first))
    service.wait_for("one", state="running")
    feed.put()
    wait_until(lambda: feed.delivered() == list(range(10)))
    service.ask("POST", "/v1/pipelines/one/stop")
    service.wait_for("one", state="stopped")
    service.kill9()
    service.start()
    assert service.show("one")["state"] == "stopped"


@pytest.mark.case(55)
def test_an_update_is_checked_drained_switched_and_rolled_back_if_it_does_not_start(
    service: Served, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "one")
    service.put("one", pipeline("one", feed.directory))
    service.wait_for("one", state="running")
    feed.put()
    wait_until(lambda: len(feed.delivered()) == 10)

    wrong = pipeline("one", feed.directory, sinks={"out": {"type": "files", "input": "nothing", "path": "x"}})
    refused = service.put("one", wrong)
    assert refused.status_code == 422
    assert "unknown-input" in {each["code"] for each in refused.json()["errors"]}
    assert service.show("one")["state"] == "running"

    with feed:
        odd = {"odd": {"type": "filter", "input": "parsed", "where": "n % 2 = 1"}}
        parsed = {"parsed": {"type": "parse_json", "input": "incoming", "schema": "n INT"}}
        out = {"out": {"type": "files", "input": "odd", "path": f"{feed.directory}/out"}}
        changed = pipeline("one", feed.directory, transforms=parsed | odd, sinks=out)
        assert service.put("one", changed).status_code == 202
        done = service.wait_for("one", state="running", update=None)
        assert (done["revision"], done["last_update"]["result"]) == (2, "done")
        at = feed.count
        wait_until(lambda: any(n > at for n in feed.delivered()))

        # What a check without Spark does not see: its engine refuses the plan.
        odd["odd"]["where"] = "nothing_of_this_name = 1"
        bad = pipeline("one", feed.directory, transforms=parsed | odd, sinks=out)
        assert service.put("one", bad).status_code == 202
        back = service.wait_for("one", state="running", update=None)
        assert (back["revision"], back["last_update"]["result"]) == (2, "rolled_back")
        assert "nothing_of_this_name" in back["last_update"]["reason"]
        at = feed.count
        wait_until(lambda: any(n > at for n in feed.delivered()))
    wait_until(lambda: received(service, "one") == feed.count)
    service.ask("POST", "/v1/pipelines/one/drain")
    service.wait_for("one", state="stopped")
    account = service.ask("GET", "/v1/pipelines/one/audit").json()
    assert account["balanced"]
    assert account["sources"]["incoming"]["in_flight"] == 0
    assert account["sources"]["incoming"]["dead_lettered"] == 0
