"""The proof that an executor sees the driver's disk, without Spark."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from signoff.catalog import default
from signoff.engine.spark import cluster as cluster_module
from signoff.engine.spark import disk_marks as driver_side
from signoff.engine.spark.cluster import NoExecutors, _Probe, check_master
from signoff.engine.spark.disk_marks import SharedDisk
from signoff.errors import PipelineError
from signoff.log import disk_proof as executor_side
from signoff.log.disk_proof import VARIABLE, NotShared, SharedPlaces, prove_shared
from signoff.log.spark import LogDataSource
from signoff.pipeline.load import load
from signoff.pipeline.settings import SparkSettings
from tests.log.events import write

PIPELINE = """
name: alarms
state: ./state
spark: {spark}
sources:
  incoming: {{type: files, path: ./in/*.jsonl}}
sinks:
  table: {{type: sqlite, input: incoming, path: ./out/alarms.db, table: alarms}}
"""


@pytest.fixture(autouse=True)
def a_new_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_side, "_proved", set())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SharedDisk]:
    made = SharedDisk(tmp_path / "state", "alarms", [tmp_path / "out"])
    made.begin()
    yield made
    made.close()


def _seen_elsewhere(disk: SharedDisk, place: Path, elsewhere: Path) -> dict[str, str]:
    """What an executor is told that has another directory in this place."""
    told = disk.told
    places = [str(elsewhere) if each == str(place) else each for each in told.places]
    return {VARIABLE: SharedPlaces(told.token, told.home, places).encode()}


def test_a_worker_that_sees_the_disk_proves_it_and_nothing_is_left_behind(
    disk: SharedDisk, tmp_path: Path
) -> None:
    prove_shared(disk.environment)
    prove_shared(disk.environment, answer_s=0)  # from now on the marks are enough
    disk.close()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_where_there_is_no_cluster_there_is_nothing_to_prove() -> None:
    prove_shared({})


def test_a_worker_with_a_disk_of_its_own_is_told_which_directory(disk: SharedDisk, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    with pytest.raises(NotShared, match=r"\[not-shared\] .*/own is not on a disk that .* cannot be read"):
        prove_shared(_seen_elsewhere(disk, tmp_path / "out", own))


def test_what_a_worker_writes_must_be_seen_by_the_driver(
    disk: SharedDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is shared for reading only: an overlay that keeps what is written."""
    monkeypatch.setattr(driver_side, "_SEEN_WITHIN_S", 0.0)
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    (overlay / disk.told.mark).write_text(disk.told.token)
    with pytest.raises(NotShared, match=f"{tmp_path}/out .*does not see what is written"):
        prove_shared(_seen_elsewhere(disk, tmp_path / "out", overlay))


def test_a_worker_that_loses_its_mount_does_no_more_work(disk: SharedDisk, tmp_path: Path) -> None:
    prove_shared(disk.environment)
    (tmp_path / "out" / disk.told.mark).unlink()
    with pytest.raises(NotShared):
        prove_shared(disk.environment)


def test_the_marks_of_a_killed_run_are_removed_and_those_of_another_pipeline_kept(tmp_path: Path) -> None:
    killed = SharedDisk(tmp_path / "state", "alarms", [tmp_path / "out"])
    other = SharedDisk(tmp_path / "other", "alarms", [tmp_path / "out"])
    for each in (killed, other):
        each.begin()
    again = SharedDisk(tmp_path / "state", "alarms", [tmp_path / "out"])
    again.begin()
    marks = {path.name for path in (tmp_path / "out").iterdir()}
    assert marks == {other.told.mark, again.told.mark}
    for each in (killed, other, again):
        each.close()


def _problems(tmp_path: Path, spark: str) -> str:
    file = tmp_path / "alarms.yaml"
    file.write_text(PIPELINE.format(spark=spark))
    try:
        load(file, default())
    except PipelineError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "spark",
    ["{master: 'spark://node1:7077'}", "{config: {spark.master: 'spark://node1:7077'}}", "{master: yarn}"],
)
def test_a_cluster_is_refused_unless_the_disk_is_said_to_be_shared(tmp_path: Path, spark: str) -> None:
    said = _problems(tmp_path, spark)
    assert "alarms.yaml:4 [not-shared] Spark runs on " in said
    assert f'the state directory ({tmp_path}/state), sink "table" ({tmp_path}/out)' in said
    assert not _problems(tmp_path, spark[:-1] + ", shared: true}")


@pytest.mark.parametrize("spark", ["{}", "{master: local}", "{master: 'local[2]', shared: true}"])
def test_one_machine_has_nothing_to_share(tmp_path: Path, spark: str) -> None:
    assert not _problems(tmp_path, spark)
    assert driver_side.shared_disk(load(tmp_path / "alarms.yaml", default())) is None


def test_a_dedupe_is_for_one_machine(tmp_path: Path) -> None:
    once = "transforms:\n  once: {type: dedupe, input: incoming, keys: [message_id]}\nsinks:"
    file = tmp_path / "alarms.yaml"
    for spark, refused in (("{master: yarn, shared: true}", True), ("{master: local}", False)):
        text = PIPELINE.format(spark=spark).replace("sinks:", once)
        file.write_text(text.replace("sqlite, input: incoming", "sqlite, input: once"))
        try:
            load(file, default())
        except PipelineError as error:
            assert refused and '[one-machine] transform "once"' in str(error)
        else:
            assert not refused


class _NoWorkers:
    """A Spark whose cluster gives nobody."""

    _jsc = property(lambda self: self)
    sc = getExecutorMemoryStatus = getConf = lambda self: self  # noqa: N815 - as Spark names them
    size = lambda self: 1  # noqa: E731 - only the driver

    def get(self, name: str) -> str:
        return name

    def parallelize(self, *_: Any) -> Any:
        threading.Event().wait()


def test_executors_that_do_not_come_are_an_error_that_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "_EXECUTOR_WITHIN_S", 0.2)
    assert not _problems(tmp_path, "{master: 'spark://node1:7077', shared: true}")
    graph = load(tmp_path / "alarms.yaml", default())
    with pytest.raises(
        NoExecutors, match=r"no executor of spark://node1:7077 .*SPARK_LOCAL_IP.*Nothing is lost"
    ):
        _Probe(graph, _NoWorkers(), tmp_path / "spark.log").run()  # type: ignore[arg-type]


def test_a_driver_of_a_cluster_is_not_bound_to_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    from signoff.engine.spark import session

    seen: list[str | None] = []

    class Stop(Exception):
        pass

    def note(_: Path) -> None:
        seen.append(os.environ.get("SPARK_LOCAL_IP"))
        raise Stop

    monkeypatch.setattr(session, "_extend_python_path", note)
    monkeypatch.setattr(session, "use_java", lambda: None)
    for master in ("spark://node1:7077", "local[2]"):
        monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
        with pytest.raises(Stop):
            session.start_session("x", SparkSettings(master=master), log_file=Path("l"), python_path=Path())
    assert seen == [None, "127.0.0.1"]


def test_an_executor_reads_only_the_log_that_the_driver_has_planned_with(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write(log, 10)
    stamp = log / executor_side.STAMP
    stamp.write_text('{"state": "ours", "run": 1}')
    source = LogDataSource({"path": str(log)})
    reading: Any = source.reader(source.schema())
    (part,) = pickle.loads(pickle.dumps(reading.divide(0, 10)))
    stamp.write_text('{"state": "ours", "run": 2}')  # another run has begun: it is the same log
    assert sum(rows.num_rows for rows in reading.read(part)) == 10
    stamp.write_text('{"state": "theirs", "run": 1}')
    with pytest.raises(NotShared, match="the log here is another one"):
        reading.read(part)
    log.rename(tmp_path / "elsewhere")
    with pytest.raises(NotShared, match="there is no such directory here; mount it on every worker"):
        reading.read(part)


def test_a_session_on_a_cluster_is_refused_where_the_pipeline_was_checked_for_one_machine(
    tmp_path: Path,
) -> None:
    assert not _problems(tmp_path, "{master: 'local[2]'}")
    graph = load(tmp_path / "alarms.yaml", default())

    def session(master: str) -> Any:
        return SimpleNamespace(sparkContext=SimpleNamespace(master=master))

    check_master(graph, session("local[4]"))
    with pytest.raises(PipelineError, match=r"Spark runs on spark://far:7077, but .* for local\[2\]"):
        check_master(graph, session("spark://far:7077"))


def test_a_worker_that_lacks_a_module_or_a_certificate_says_which(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("def f(row): return row\n")
    (tmp_path / "ca.pem").write_text("a certificate")
    step = "transforms:\n  made: {type: python, input: incoming, function: 'steps:f', mode: rows}\nsinks:"
    sink = "\n  queue: {type: rabbitmq, input: made, url: 'amqps://x/', exchange: e, "
    sink += "routing_key: payload, ca_file: ca.pem}\n"
    text = PIPELINE.format(spark="{master: 'spark://x:1', shared: true}").replace("sinks:", step)
    (tmp_path / "p.yaml").write_text(text + sink)
    disk = driver_side.shared_disk(load(tmp_path / "p.yaml", default()))
    assert disk is not None
    disk.begin()
    try:
        prove_shared(disk.environment)
        for name in ("steps.py", "ca.pem"):
            content = (tmp_path / name).read_text()
            executor_side._proved.clear()
            (tmp_path / name).write_text("another")
            with pytest.raises(NotShared, match=f"{name} is needed on every worker.*content is another one"):
                prove_shared(disk.environment)
            (tmp_path / name).unlink()
            with pytest.raises(NotShared, match=f"{name} is needed on every worker.*No such file"):
                prove_shared(disk.environment)
            (tmp_path / name).write_text(content)
    finally:
        disk.close()
