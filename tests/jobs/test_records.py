"""A run is recorded under its key, once for each time it was asked for."""

from __future__ import annotations

from pathlib import Path

from signoff.jobs.records import Output, Records

NO_PERIOD = (None, None)


def test_an_unfinished_run_is_resumed_and_a_finished_one_is_done_anew(tmp_path: Path) -> None:
    with Records(tmp_path) as records:
        first = records.begin("job@a=1", "person", "{}", NO_PERIOD)
        again = records.begin("job@a=1", "person", "{}", NO_PERIOD)
        assert (again.edition, again.tries, again.began_at) == (1, 2, first.began_at)
        records.change(again, state="done")
        anew = records.begin("job@a=1", "person", "{}", NO_PERIOD)
        assert (anew.edition, anew.tries, anew.state) == (2, 1, "computing")
        assert records.begin("job@a=2", "person", "{}", NO_PERIOD).edition == 1


def test_what_failed_before_its_rows_were_in_the_logs_is_the_same_edition(tmp_path: Path) -> None:
    with Records(tmp_path) as records:
        run = records.change(
            records.begin("job", "person", "{}", NO_PERIOD), state="failed", reason="no table"
        )
        again = records.begin("job", "person", "{}", NO_PERIOD)
        assert (again.edition, again.state, again.reason) == (1, "computing", "")
        outputs = {"q": Output(3, "{}", ("p",), first=7)}
        run = records.change(again, state="failed", outputs=outputs)
        assert run.ranges == {"q": (7, 10)}
        assert records.begin("job", "person", "{}", NO_PERIOD).edition == 2


def test_other_values_of_the_same_run_begin_from_the_beginning(tmp_path: Path) -> None:
    with Records(tmp_path) as records:
        run = records.begin("job", "person", '{"least": 1}', NO_PERIOD)
        records.change(run, state="computed", outputs={"q": Output(3, "{}", ("p",))})
        assert records.begin("job", "person", '{"least": 1}', NO_PERIOD).state == "computed"
        assert records.begin("job", "person", '{"least": 2}', NO_PERIOD).state == "computing"


def test_who_asks_once_is_not_given_what_another_has_computed_before(tmp_path: Path) -> None:
    """An event that asks for a run does so because of data that the earlier one may not have seen."""
    with Records(tmp_path) as records:
        run = records.begin("job", "person", "{}", NO_PERIOD)
        records.change(run, state="computed", outputs={"q": Output(3, "{}", ("p",))}, began_at=1.0)
        anew = records.begin("job", "alerts #1", "{}", NO_PERIOD)
        assert (anew.edition, anew.state, anew.asked_by) == (1, "computing", "alerts #1")
        assert anew.began_at > 1.0
        records.change(anew, state="computed")
        assert records.begin("job", "alerts #1", "{}", NO_PERIOD).state == "computed"
        assert records.begin("job", "alerts #2", "{}", NO_PERIOD).state == "computing"
        assert records.asked_by("alerts #1") is None  # nobody has done it


def test_a_state_without_runs_has_none(tmp_path: Path) -> None:
    with Records(tmp_path, readonly=True) as records:
        assert records.newest() == []


def test_a_person_who_goes_on_with_other_values_does_not_do_it_for_who_asked_before(tmp_path: Path) -> None:
    with Records(tmp_path) as records:
        run = records.begin("job", "schedule a", '{"least": 1}', (1.0, 2.0))
        records.change(run, state="computed")
        again = records.begin("job", "person", '{"least": 1}', NO_PERIOD)
        assert (again.state, again.asked_by, again.period) == ("computed", "schedule a", (1.0, 2.0))
        anew = records.begin("job", "person", '{"least": 2}', NO_PERIOD)
        assert (anew.state, anew.asked_by, anew.period) == ("computing", "person", NO_PERIOD)
        taken = records.begin("job", "schedule b", '{"least": 2}', (2.0, 3.0))
        assert (taken.state, taken.asked_by, taken.period) == ("computing", "schedule b", (2.0, 3.0))
