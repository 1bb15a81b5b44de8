"""The report sink: whatever is killed and repeated, one report of all rows of a run, in place of the last."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from signoff.errors import PermanentError, TransientError
from signoff.sinks.contract import EVENT_ID, INPUT, BatchRef, Part, RunRef
from signoff.sinks.report import files as report_files
from signoff.sinks.report import rows as report_rows
from signoff.sinks.report.rows import StagedRows
from signoff.sinks.report.sink import ReportSink, ReportSinkConfig

ONCE = RunRef("state-1", bounded=True)


def config(**fields: Any) -> ReportSinkConfig:
    given = {"inputs": ["a", "b"], "path": "out/report", "formats": ["json"], "title": "Rows", **fields}
    return ReportSinkConfig.model_validate(given)


def sink(base: Path, run: RunRef | None = ONCE, **fields: Any) -> ReportSink:
    made = config(**fields).build(base)
    if run is not None:
        made.begin(run)
    made.prepare()
    return made


def rows(*given: tuple[str, int, int]) -> pa.RecordBatch:
    """Rows as the engine gives them: input, number of the event, value. `b` calls its column otherwise."""
    inputs = [name for name, _, _ in given]
    return pa.record_batch(
        {
            EVENT_ID: [f"incoming/{number}" for _, number, _ in given],
            "a.value": pa.array([value if name == "a" else None for name, _, value in given], pa.int64()),
            "b.text": pa.array(
                [str(value) if name == "b" else None for name, _, value in given], pa.string()
            ),
            INPUT: inputs,
        }
    )


def batch(start: int = 0, end: int = 10, replay: int = 0) -> BatchRef:
    return BatchRef("incoming", start, end, replay)


def commit(made: ReportSink, ref: BatchRef, *parts: pa.RecordBatch) -> None:
    found = []
    for number, given in enumerate(parts):
        writer = made.open(Part(ref, number, number))
        assert list(writer.write(given)) == []
        found.append(writer.close())
    made.commit(ref, [part for part in found if part is not None])


def read(base: Path) -> dict[str, list[Any]]:
    """What the report holds, by input."""
    found = json.loads((base / "out/report.json").read_bytes())
    return {name: [next(iter(row.values())) for row in one["rows"]] for name, one in found["inputs"].items()}


def created(base: Path) -> str:
    return str(json.loads((base / "out/report.json").read_bytes())["created"])


def test_report_is_made_at_the_end_of_the_run_of_all_batches_and_inputs(tmp_path: Path) -> None:
    made = sink(tmp_path)
    commit(made, batch(0, 10), rows(("a", 1, 5), ("b", 2, 7)), rows(("a", 3, 4)))
    commit(made, batch(10, 20), rows(("a", 11, 6)))
    assert not (tmp_path / "out/report.json").exists()
    sink(tmp_path).finish(ONCE)  # by a sink made anew, as after a kill
    assert read(tmp_path) == {"a": [4, 5, 6], "b": ["7"]}


def test_without_an_end_the_report_is_there_with_every_batch(tmp_path: Path) -> None:
    made = sink(tmp_path, RunRef("state-1", bounded=False))
    commit(made, batch(0, 10), rows(("a", 1, 5)))
    assert read(tmp_path) == {"a": [5], "b": []}
    commit(made, batch(10, 20), rows(("b", 11, 6)))
    assert read(tmp_path) == {"a": [5], "b": ["6"]}


def test_batch_that_is_done_again_replaces_its_rows(tmp_path: Path) -> None:
    made = sink(tmp_path)
    commit(made, batch(), rows(("a", 1, 5), ("a", 2, 6)))
    commit(made, batch(), rows(("a", 1, 50)))
    commit(made, batch(10, 20), rows(("a", 11, 7)))
    commit(made, batch(10, 20))  # no rows of it are made any more
    made.finish(ONCE)
    assert read(tmp_path) == {"a": [50], "b": []}


def test_run_without_any_rows_has_a_report_that_says_so(tmp_path: Path) -> None:
    sink(tmp_path).finish(ONCE)
    assert read(tmp_path) == {"a": [], "b": []}


def test_next_run_replaces_the_report_as_a_whole(tmp_path: Path) -> None:
    made = sink(tmp_path)
    commit(made, batch(0, 10), rows(("a", 1, 5)))
    made.finish(ONCE)
    made = sink(tmp_path)
    commit(made, batch(10, 20), rows(("b", 11, 6)))
    assert read(tmp_path) == {"a": [5], "b": []}  # until the end
    made.finish(ONCE)
    assert read(tmp_path) == {"a": [], "b": ["6"]}


def test_run_that_brings_nothing_new_leaves_the_report_as_it_is(tmp_path: Path) -> None:
    made = sink(tmp_path)
    commit(made, batch(), rows(("a", 1, 5)))
    made.finish(ONCE)
    before = (tmp_path / "out/report.json").stat()
    sink(tmp_path).finish(ONCE)
    after = (tmp_path / "out/report.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_replayed_dead_letter_is_added_to_the_report_it_was_missing_from(tmp_path: Path) -> None:
    made = sink(tmp_path)
    commit(made, batch(), rows(("a", 1, 5)))
    made.finish(ONCE)
    commit(made, batch(replay=1), rows(("a", 2, 6)))
    made.finish(ONCE)
    assert read(tmp_path) == {"a": [5, 6], "b": []}


def test_letter_replayed_after_the_end_is_in_the_next_report_if_no_other_had_it(tmp_path: Path) -> None:
    """It was signed for; the next run brings rows before a report is made of it."""
    made = sink(tmp_path)
    commit(made, batch(), rows(("a", 1, 5)))
    made.finish(ONCE)
    commit(made, batch(replay=1), rows(("a", 2, 6)))
    commit(made, batch(10, 20), rows(("a", 11, 7)))
    made.finish(ONCE)
    assert read(tmp_path) == {"a": [6, 7], "b": []}
    commit(made, batch(20, 30), rows(("a", 21, 8)))
    made.finish(ONCE)
    assert read(tmp_path) == {"a": [8], "b": []}


def test_kill_while_the_rows_of_the_last_run_are_removed_leaves_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sink(tmp_path)
    commit(made, batch(), rows(("a", 1, 5)))
    made.finish(ONCE)

    def half(directory: Path, **_: object) -> None:
        (directory / "run.json").unlink(missing_ok=True)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(report_rows.shutil, "rmtree", half)
        with pytest.raises(Killed):
            commit(made, batch(10, 20), rows(("a", 11, 6)))
    made = sink(tmp_path)
    commit(made, batch(10, 20), rows(("a", 11, 6)))
    made.finish(ONCE)
    assert read(tmp_path) == {"a": [6], "b": []}


def test_changed_template_makes_the_report_anew_of_the_same_rows(tmp_path: Path) -> None:
    made = sink(tmp_path)
    commit(made, batch(), rows(("a", 1, 5)))
    made.finish(ONCE)
    changed = sink(tmp_path, title="Other", formats=["html"])
    changed.finish(ONCE)
    assert "<h1>Other</h1>" in (tmp_path / "out/report.html").read_text()
    assert not (tmp_path / "out/report.json").exists()  # a form that it has no more would be out of date


def test_rows_of_a_run_that_was_given_up_are_in_no_report(tmp_path: Path) -> None:
    commit(sink(tmp_path), batch(), rows(("a", 1, 5)))
    other = RunRef("state-2", bounded=True)
    made = sink(tmp_path, other)
    commit(made, batch(), rows(("a", 1, 6)))
    made.finish(other)
    assert read(tmp_path) == {"a": [6], "b": []}
    assert len(list((tmp_path / "out/.report.report").glob("*/run.json"))) == 1


def test_job_that_is_run_again_replaces_its_report_and_keeps_that_of_another_key(tmp_path: Path) -> None:
    def job(key: str, edition: int) -> RunRef:
        began = datetime(2021, 5, edition, 6, tzinfo=UTC)
        period = (datetime(2021, 5, 1, tzinfo=UTC), None)
        return RunRef(f"{key}#{edition}", True, key, began, period=period, complete_to="2021-05-01 09:00")

    one, two, again = job("x", 1), job("y", 1), job("x", 2)
    waiting = sink(tmp_path, two, path="out/other")
    commit(waiting, batch(), rows(("a", 1, 7)))
    for run, value in ((one, 5), (again, 6)):
        made = sink(tmp_path, run)
        commit(made, batch(run.began_at.day * 10 if run.began_at else 0, 99), rows(("a", 1, value)))
        made.finish(run)
    assert read(tmp_path) == {"a": [6], "b": []}
    assert created(tmp_path) == "2021-05-02T06:00:00Z"
    about = json.loads((tmp_path / "out/report.json").read_bytes())["about"]
    assert about == {"From": "2021-05-01 00:00:00 UTC", "Input complete to": "2021-05-01 09:00"}
    waiting.finish(two)
    assert json.loads((tmp_path / "out/other.json").read_bytes())["inputs"]["a"]["rows"] == [{"value": 7}]


class Killed(BaseException):
    """What no code of the product catches."""


@pytest.mark.crash
@pytest.mark.parametrize("moment", range(12))
def test_sigkill_at_any_moment_of_writing_leaves_whole_files_and_the_next_try_one_report(
    tmp_path: Path, moment: int
) -> None:
    formats = ["json", "html"]
    made = sink(tmp_path, formats=["html", "json", "xlsx"])
    commit(made, batch(), rows(("a", 1, 5)))
    made.finish(ONCE)
    old = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("report.*")}
    made = sink(tmp_path, formats=formats)
    commit(made, batch(10, 20), rows(("a", 11, 6)))
    assert killed_at(moment, lambda: made.finish(ONCE)) == signal.SIGKILL
    for form in formats:
        content = (tmp_path / f"out/report.{form}").read_bytes()
        whole = content.rstrip().endswith((b"}", b"</html>"))
        assert content == old[f"report.{form}"] or (b"6" in content and whole)
    sink(tmp_path, formats=formats).finish(ONCE)
    assert read(tmp_path) == {"a": [6], "b": []}
    assert sorted(path.name for path in (tmp_path / "out").glob("report.*")) == ["report.html", "report.json"]


def killed_at(moment: int, work: Callable[[], object]) -> int:
    """Do it in a process that is killed before its n-th step that changes the disk; returns the signal."""
    if (child := os.fork()) == 0:
        try:
            _kill_before(moment)
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status)


def _kill_before(moment: int) -> None:
    left = [moment]

    def killing(step: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*arguments, **options)

        return stepped

    for module in (report_files, report_rows):
        for name in ("write_whole", "sync_directory", "make_private"):
            setattr(module, name, killing(getattr(module, name)))
    Path.replace = killing(Path.replace)  # type: ignore[method-assign]


def killed(*_: object, **__: object) -> None:
    raise Killed


def test_rows_and_report_of_a_killed_run_are_finished_under_the_stamp_of_the_first_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sink(tmp_path)
    commit(made, batch(), rows(("a", 1, 5)))
    with monkeypatch.context() as patch:
        patch.setattr(StagedRows, "mark_written", killed)
        with pytest.raises(Killed):
            made.finish(ONCE)
    first = (tmp_path / "out/report.json").read_bytes()
    sink(tmp_path).finish(ONCE)
    assert (tmp_path / "out/report.json").read_bytes() == first


def test_more_rows_than_max_rows_are_refused_and_those_before_stay(tmp_path: Path) -> None:
    made = sink(tmp_path, max_rows=3)
    commit(made, batch(), rows(("a", 1, 1), ("a", 2, 2)))
    with pytest.raises(PermanentError, match="max_rows is 3"):
        commit(made, batch(10, 20), rows(("a", 11, 3), ("b", 12, 4)))
    writer = made.open(Part(batch(20, 30), 0, 0))
    refusals = writer.write(rows(*(("a", number, number) for number in range(5))))
    assert [(one.index, one.transient) for one in refusals] == [(3, False), (4, False)]
    made.finish(ONCE)
    assert read(tmp_path) == {"a": [1, 2], "b": []}


def test_batches_of_two_sources_that_come_at_once_are_taken_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, both = sink(tmp_path, max_rows=3), threading.Barrier(2)
    count, refusals = StagedRows.count, list[str]()

    def meeting(self: StagedRows, without: BatchRef | None = None) -> int:
        found = count(self, without)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)  # for the other one, which is not to come as far as this
        return found

    def of_source(name: str) -> None:
        try:
            commit(made, BatchRef(name, 0, 10), rows(("a", 1, 5), ("b", 2, 7)))
        except PermanentError as error:
            refusals.append(str(error))

    monkeypatch.setattr(StagedRows, "count", meeting)
    threads = [threading.Thread(target=of_source, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refusals) == 1 and "would have 4 rows" in refusals[0]
    made.finish(ONCE)
    assert read(tmp_path) == {"a": [5], "b": ["7"]}


def test_disk_that_takes_nothing_is_a_transient_failure_and_the_old_report_stays(tmp_path: Path) -> None:
    made = sink(tmp_path)
    commit(made, batch(), rows(("a", 1, 5)))
    made.finish(ONCE)
    place = tmp_path / "out/.report.report"
    place.rename(tmp_path / "aside")
    place.touch()  # permissions would not stop root
    with pytest.raises(TransientError, match="cannot write to"):
        commit(made, batch(10, 20), rows(("a", 11, 6)))
    with pytest.raises(TransientError, match="cannot write to"):
        made.finish(RunRef("state-3", bounded=True))
    assert read(tmp_path) == {"a": [5], "b": []}


def test_rows_of_which_no_document_can_be_made_are_refused_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = RunRef("state-1", bounded=False)
    made = sink(tmp_path, endless)
    commit(made, batch(), rows(("a", 1, 5)))
    with monkeypatch.context() as patch:
        patch.setattr("signoff.sinks.report.sink.render", lambda *_: 1 / 0)
        with pytest.raises(PermanentError, match="could not be made as json"):
            commit(made, batch(10, 20), rows(("a", 11, 6)))
    commit(made, batch(20, 30), rows(("a", 21, 7)))
    assert read(tmp_path) == {"a": [5, 7], "b": []}
    odd = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
    with pytest.raises(PermanentError, match=r"(?i)interval"):
        made.open(Part(batch(30, 40), 0, 0)).write(
            pa.record_batch({EVENT_ID: ["incoming/31"], "a.odd": odd, INPUT: ["a"]})
        )


@pytest.mark.parametrize("bounded", [True, False])
def test_rows_that_cannot_be_combined_are_in_the_report_and_so_are_the_others(
    tmp_path: Path, bounded: bool
) -> None:
    run = RunRef("state-1", bounded=bounded)
    fields: Any = {"inputs": ["a"], "about": {"Mean": "{mean(a.v)}", "Most": "{max(a.w)}"}}
    made = sink(tmp_path, run, **fields)
    for number, (mean, most) in enumerate([(1.7e308, [1]), (1.7e308, [None]), (1.0, [2])]):
        given = {"v": pa.array([mean]), "w": pa.array([most], pa.list_(pa.int64()))}
        given = {f"a.{name}": column for name, column in given.items()}
        odd = pa.record_batch({EVENT_ID: [f"incoming/{number}"], **given, INPUT: ["a"]})
        commit(made, batch(number, number + 1), odd)
    if bounded:
        made.finish(run)
    found = json.loads((tmp_path / "out/report.json").read_bytes())
    assert found["about"] == {"Mean": "1.13e+308", "Most": "[null]"}
    assert len(found["inputs"]["a"]["rows"]) == 3


def test_report_that_cannot_be_composed_is_a_failure_with_a_reason_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sink(tmp_path, RunRef("state-1", bounded=False))
    commit(made, batch(), rows(("a", 1, 5)))
    with monkeypatch.context() as patch:
        patch.setattr("signoff.sinks.report.sink.compose", lambda *_: 1 / 0)
        with pytest.raises(PermanentError, match="could not be made of these rows: division"):
            commit(made, batch(10, 20), rows(("a", 11, 6)))
        with pytest.raises(PermanentError, match="could not be made of these rows: division"):
            sink(tmp_path, ONCE, title="Other").finish(ONCE)
    commit(made, batch(20, 30), rows(("a", 21, 7)))
    assert read(tmp_path) == {"a": [5, 7], "b": []}


def test_only_the_report_itself_is_for_others_to_read(tmp_path: Path) -> None:
    made = sink(tmp_path)
    commit(made, batch(), rows(("a", 1, 5)))
    made.finish(ONCE)
    assert (tmp_path / "out/report.json").stat().st_mode & 0o044
    assert not (tmp_path / "out/.report.report").stat().st_mode & 0o077


def test_column_whose_type_has_changed_is_a_text_in_the_report(tmp_path: Path) -> None:
    made = sink(tmp_path, inputs=["a"])
    commit(made, batch(), rows(("a", 1, 5)))
    changed = pa.record_batch({EVENT_ID: ["incoming/11"], "a.value": [["x"]], INPUT: ["a"]})
    commit(made, batch(10, 20), changed)
    made.finish(ONCE)
    assert read(tmp_path) == {"a": ["5", '["x"]']}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"content": [{"table": "c"}]}, 'names "c", which is no input'),
        ({"content": [{"text": "{count(c)}"}]}, 'names "c", which is no input'),
        ({"title": "{median(a.value)}"}, "there is no median"),
        ({"timezone": "Mars"}, 'timezone "Mars" is unknown'),
        ({"path": "out/"}, "names the report itself"),
        ({"buffer": {}}, "would mix the inputs"),
        ({"content": [{"chart": "pie", "of": "a", "title": "t", "x": "x", "y": "y"}]}, "'bar' or 'line'"),
        ({"content": [{"table": "a", "collumns": ["x"]}]}, "collumns"),
    ],
)
def test_wrong_template_is_refused_with_what_is_wrong(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        config(**fields)
