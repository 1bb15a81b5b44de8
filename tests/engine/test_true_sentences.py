"""Every sentence of `explain`, `status` and `dead-letters replay` is true, whatever happened.

Random runs as in `test_settlement_model`, with more: letters are replayed and dropped by hand, steps and
sinks are mended meanwhile, sinks are removed and renamed. At any moment what the commands say is compared
with what really happened, as the outside world knows it: what each sink holds, what each source was told, for
which reasons letters were stored, what was dropped by hand. Nothing is compared with the ledger itself.

    SIGNOFF_MODEL_RUNS=5000 pytest tests/engine/test_true_sentences.py   more of them
    SIGNOFF_MODEL_SEED=123 pytest tests/engine/test_true_sentences.py    one again, with its story
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from signoff.batch import BatchRef
from signoff.engine.plan.lineage import made_from
from signoff.engine.replay.batch_name import is_of_letters
from signoff.engine.state_dir.removed_nodes import obstacle, stage_names
from signoff.ledger import DeadLetter, drop_letters
from signoff.ledger.explain import Explanation, Line, explain
from signoff.ledger.letter import OPEN
from signoff.ledger.outcome import BUFFER, EventId, RowRef, edition
from signoff.ledger.resubmission import resubmit, why_not
from signoff.log import LogReader
from signoff.operate.replay import End, end_of
from signoff.pipeline.graph import Graph
from signoff.watch.metrics import registry_of
from signoff.watch.status import read_status
from tests.engine.settlement_model import Arrival, Model, SinkScript, World, walk
from tests.engine.settlement_model import End as Ended
from tests.engine.simulated_replay import replay_letters
from tests.engine.simulated_run import graph_of, machine_directory
from tests.engine.test_settlement_model import RUNS, SEED, Run, blocks, quiet

__all__ = ["quiet"]

_STEPS = 25
_RUNS = RUNS // 3
_BLOCK = 5
"""Runs that are one test; each costs ten times as much as one of the model, since so much is asked."""
_FINAL = ("delivered", "dropped", "dead_lettered", "refused", "expired")


class ToldRun(Run):
    """One seed."""

    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        self.expires = self.rng.random() < 0.3
        self.first = World(seed, self.world.sources, self.world.steps, self.world.sinks)
        """The pipeline and its behaviour as they were in the beginning."""
        self.scripts: dict[str, SinkScript] = {sink.name: sink for sink in self.world.sinks}
        """Also of sinks that are gone."""
        self.beginning = Model(self.first)
        self.changed = False
        self.renamed: dict[str, str] = {}
        self.resubmitted: dict[tuple[str, str], str] = {}
        """The corrected event in the place of a letter."""
        self.by_hand: set[tuple[str, str]] = set()
        """Letters that were dropped by hand."""

    def go(self) -> None:
        self.restart()
        try:
            for _ in range(_STEPS):
                self.attempt(self.rng.choice((self.random_action(), self.random_action(), "letters")))
                if not self.changed and self.rng.random() < 0.02:
                    self.change_pipeline()
                if self.rng.random() < 0.4:
                    self.check_sentences()
            self.settle_all()
            self.check_sentences()
            self.world.mended = self.rng.choice((0.5, 1.0))
            self.act("letters")
            self.settle_all()
            self.check_sentences()
            self.check_audit()
            self.check_replayed_once()
        finally:
            self.machine.end()

    # -- more that may happen

    def act(self, action: str) -> None:
        if action != "letters":
            super().act(action)
        elif self.rng.random() < 0.3:
            self.drop_by_hand()
        elif self.rng.random() < 0.3:
            self.resubmit()
        else:
            self.world.mended = self.rng.choice((0.0, 0.5, 1.0))
            self.replay()

    def drop_by_hand(self) -> None:
        letters = self.machine.letters
        chosen = [x for x in letters.list(statuses=("stored", "replaying")) if self.rng.random() < 0.3]
        letters.take_for_drop(chosen)  # those whose replay was killed
        chosen = [replace(x, status="stored") for x in chosen]
        if chosen:
            drop_letters(self.machine.ledger, letters, chosen)
            self.by_hand |= {x.key for x in chosen}
            self.note(f"dropped by hand: {sorted(x.key for x in chosen)}")

    def resubmit(self) -> None:
        """A corrected event in the place of a letter; it is replayed with the others, some time."""
        letters = self.machine.letters
        fit = [x for x in letters.list(statuses=("stored", "dropping")) if not why_not(x)]
        if not fit:
            return
        old = self.rng.choice(fit)
        new = resubmit(self.machine.ledger, letters, old, old.payload)
        self.resubmitted[old.key] = new.event_id
        self.note(f"{old.key} is resubmitted as {new.event_id}")

    def replay(self) -> None:
        """As the command does it: those that cannot be replayed are not tried."""
        letters, names = self.machine.letters, stage_names(self.graph())
        chosen = [x for x in letters.list(statuses=("stored",)) if self.rng.random() < 0.7]
        unfit = {x.key: why for x in chosen if (why := obstacle(names, x, {}))}
        letters.request_replay([x for x in chosen if x.key not in unfit])
        if self.rng.random() < 0.2:
            letters.withdraw(letters.list(statuses=("replaying",)))
        self.note(f"replay, mended {self.world.mended}: {sorted(x.key for x in chosen)}")
        replay_letters(self.machine)
        for _ in range(5):  # what was handed on is settled behind its log
            for query in self.machine.queries.values():
                self.machine.clock.now += 3.0
                self.take(query, 5)
                query.parking.retry()
            self.tend()
        for letter in chosen:
            end = end_of(letters, letter.key, unfit.get(letter.key, ""))
            self.note(f"  {end}")
            self.check_end_of(letter, end)

    def rename_a_sink(self) -> None:
        """Not at kills: see `change_pipeline`."""

    def change_pipeline(self) -> None:
        """A sink is removed or renamed between two runs."""
        # What is in a link, or a buffer, that is gone is never answered: `status` says so, and it never ends.
        fit = [sink for sink in self.world.sinks if not self.model.hands_on(sink)]
        if not fit:
            return
        self.changed = True
        old = self.rng.choice(fit)
        kept = [sink for sink in self.world.sinks if sink is not old]
        if self.rng.random() < 0.5 or not kept:
            place = old.kept_at if self.renames.random() < 0.5 else ""
            new = replace(old, name=f"{old.name}new", place=place)
            self.scripts[new.name] = new
            self.renamed[new.name] = old.name
            kept.append(new)
        self.note(f"{old.name} is gone, there are {[sink.name for sink in kept]}")
        self.world.sinks = tuple(kept)
        self.world._reached.clear()
        self.model = type(self.model)(self.world)
        self.outside.kills += 1  # a batch may be done again, as after a kill
        self.machine.end()
        self.machine = type(self.machine)(self.outside, self.directory, self.rng)
        self.restart()

    def check_acknowledged(self, source: str, number: int) -> None:
        if not self.changed:  # what a sink gets that came later is not what the model knows
            model, self.model = self.model, self.beginning
            super().check_acknowledged(source, number)
            self.model = model

    def check_handed(self, sink: str, row: str, again: bool) -> None:
        """What another pipeline has refused is handed on again when its letter is replayed."""
        super().check_handed(sink, row, again and (row, sink) not in self.outside.lettered)

    # -- what really happened

    def graph(self) -> Graph:
        return graph_of(self.world, self.directory)

    def arrivals(self, source: str, number: int, sink: str) -> list[Arrival]:
        """Rows that must have come to a sink, when it was in the pipeline."""
        world = World(self.first.seed, self.first.sources, self.first.steps, (self.scripts[sink],))
        walked = walk(world, source, number, lambda *_: False)
        return [one for one in walked if isinstance(one, Arrival)]

    def has(self, sink: str, row: str) -> bool:
        return row in self.outside.rows(sink) or row in self.in_links(sink)

    def anywhere(self, source: str, number: int) -> set[str]:
        """Sinks that hold rows of an event."""
        event = RowRef(number)
        rows = {name: {*self.outside.rows(name), *self.in_links(name)} for name in self.scripts}
        return {
            name
            for name, held in rows.items()
            if any(EventId.parse(r).source == source and event.holds(EventId.parse(r).row) for r in held)
        }

    # -- what is said of it

    def check_sentences(self) -> None:
        graph = self.graph()
        found: dict[str, Counter[str]] = {}
        owing: set[str] = set()
        for source in self.world.sources:
            counts = found[source.name] = Counter[str]()
            for number in range(source.events):
                story = explain(graph, f"{source.name}/{number}", LogReader)
                try:
                    self.check_story(source.name, number, story)
                except AssertionError as error:
                    raise AssertionError(f"{error}\n{story}") from error
                counts[story.state] += 1
                owing |= {line.stage for line in story.lines if line.state in ("owed", "buffered")}
                waits = [line.text for line in story.lines if line.state == "waits"]
                owing |= {text.partition(":")[0].removeprefix("for ") for text in waits}
        for buffer in self.machine.queries.keys() - found.keys():
            for number in range(LogReader(self.directory / "state" / "log" / buffer).head()):
                story = explain(graph, f"{buffer}/{number}", LogReader)
                owing |= {line.stage for line in story.lines if line.state == "owed"}
        self.check_status(graph, found, owing)

    def check_story(self, source: str, number: int, story: Explanation) -> None:
        told = self.outside.told.get((source, number))
        if told is not None and not (story.state == "settled" and told != "acknowledged"):
            assert story.acknowledged == (told == "acknowledged"), f"the source was told: {told}"
        if story.state in ("refused", "expired"):
            assert told in (None, story.state)
        certain = not self.model.given_up(source, number)
        held = self.anywhere(source, number)
        if story.state == "waiting":
            assert not held, f"{held} have rows of it"
        if story.state == "delivered":
            assert held, "nobody has a row of it"
        if story.state == "dead_lettered":
            assert any(x.status in OPEN and x.key in self.outside.lettered for x in story.letters)
        if "nothing of it was left to deliver" in story.why and certain:
            sinks = [line.stage for line in story.lines if line.stage in self.scripts]
            came = [one for sink in sinks for one in self.arrivals(source, number, sink)]
            assert not came, f"{came} were on their way"
        for line in story.lines:
            self.check_line(source, number, story, line, certain)
        for letter in story.letters:
            self.check_letter(letter)

    def check_line(self, source: str, number: int, story: Explanation, line: Line, certain: bool) -> None:
        name = line.stage
        waits = any(other.state == "waits" and f"for {name}:" in other.text for other in story.lines)
        if line.text == "no row of this event reached it":
            assert name not in self.anywhere(source, number), f"{name} has one"
        if line.text.endswith("took its rows"):
            assert name in self.anywhere(source, number), f"{name} has none"
        took = "took its rows" in line.text or "took all that reached it" in line.text
        if line.state == "done" and took and certain and not waits:
            came = {x.id for x in self.arrivals(source, number, name)}
            if "its buffer" in line.text:  # whatever became of it there: it was put there
                assert (self.directory / "state" / "log" / f"{name}{BUFFER}").exists()
            else:
                before = self.renamed.get(name, name)
                lacks = {row for row in came if not self.has(name, row) and not self.has(before, row)}
                assert not lacks, f"{name} lacks {lacks}"
        if line.state in ("done", "owed") and name in self.scripts:
            gone = name not in {sink.name for sink in self.world.sinks}
            said = "not in the pipeline" in line.text or "not in the pipeline" in story.why
            assert gone or "not in the pipeline" not in line.text
            assert said or not gone or line.state == "owed", f"{name} is gone, and nobody says so"
        if "delivered by the sink that replaced it" in line.text:
            places = [name, *(new for new, old in self.renamed.items() if old == name)]
            self.check_taken(source, number, story, places)
        if line.text.endswith("owes its rows now"):
            owing = {other.stage for other in story.lines if other.state == "owed"}
            owing |= {other.text.partition(":")[0].removeprefix("for ") for other in story.lines}
            assert line.text.split('"')[1] in owing
        if "letter replayed: delivered" in line.text:
            self.check_delivered(line.event_id, name)
        if "resubmitted as" in line.text:
            assert self.resubmitted[line.event_id, name] in line.text
        if "dropped by hand" in line.text:
            keys = {(line.event_id, name)} | {x.key for x in story.letters if x.stage == name}
            assert keys & self.by_hand
        if "failed at a later stage" in line.text:
            row = EventId.parse(line.event_id)
            later = [key for key in self.outside.lettered if key[1] != name or BUFFER in key[0]]
            known = any(self.is_of(key, row) for key in later)
            # A resubmission that was killed: the corrected event is there, and the old letter is not closed.
            known |= "or resubmitted" in line.text and self.is_corrected(row, name)
            assert known, "there is no such letter"

    def check_taken(self, source: str, number: int, story: Explanation, places: list[str]) -> None:
        """Rows that had come to a sink that is gone: it has them, or the one in its place."""
        tried = {row for (sink, row) in (*self.outside.taken, *self.outside.tried) if sink == places[0]}
        mine = [row for row in tried if EventId.parse(row).source == source]
        mine = [row for row in mine if EventId.parse(row).sequence == number]
        lettered = {key[0] for key in self.outside.lettered}
        named = {line.event_id for line in story.lines}
        negative = story.state in ("refused", "expired")
        lacks = [x for x in mine if not any(self.has(place, x) for place in places)]
        assert negative or not [x for x in lacks if x not in lettered | named], f"{places} lack {lacks}"

    def is_of(self, key: tuple[str, str], row: EventId) -> bool:
        """Whether a letter is of a row made from another, also behind a log."""
        letter = EventId.parse(key[0])
        if letter.source.endswith(BUFFER):
            return True
        return letter.source == row.source and row.row.holds(letter.row)

    def is_corrected(self, row: EventId, stage: str) -> bool:
        """Whether a corrected event has a letter of the same stage."""
        events = [EventId.parse(event_id) for event_id, of in self.outside.lettered if of == stage]
        same = [each for each in events if (each.source, each.sequence) == (row.source, row.sequence)]
        return any(edition(each.child) not in ("", edition(row.child)) for each in same)

    def check_letter(self, letter: DeadLetter) -> None:
        reasons = self.outside.lettered[letter.key]
        if letter.attempts > 1 and letter.status in OPEN:
            assert letter.reason == reasons[0] or letter.first_reason, f"{reasons[0]} is lost"
        if letter.first_reason and not letter.first_reason.startswith('at "'):
            # A corrected event has it of the letter it takes the place of.
            same = [key for key in self.outside.lettered if EventId.parse(key[0]).sequence == letter.sequence]
            known = [reason for key in same for reason in self.outside.lettered[key]]
            assert letter.first_reason in known or letter.first_reason.split(": ")[-1] in known

    def check_delivered(self, event_id: str, stage: str) -> None:
        if stage in self.scripts and BUFFER not in event_id:
            assert self.has(stage, event_id), f"{stage} lacks {event_id}"
        elif BUFFER not in event_id:
            event = EventId.parse(event_id)
            assert self.anywhere(event.source, event.sequence), f"nobody has a row of {event_id}"

    # -- what a replay says

    def check_end_of(self, letter: DeadLetter, end: End) -> None:
        known = self.machine.letters.get(*letter.key)
        if end.outcome == "delivered":
            row = letter.message_id if letter.source.endswith(BUFFER) else letter.event_id
            assert row is not None
            self.check_delivered(row, letter.stage)
            behind = self.behind(letter)
            lacks = [one for one in behind if not self.has(one.sink, one.id)]
            assert not lacks or self.model.given_up(letter.source, letter.sequence), f"{lacks} are not there"
        elif end.outcome == "failed_again":
            assert known and known[0].status in OPEN and end.reason == known[0].reason
            if letter.stage in self.scripts and not self.outside.kills and not letter.source.endswith(BUFFER):
                assert letter.event_id not in self.outside.rows(letter.stage)
        elif end.outcome == "failed_later":
            later = [key for key in self.outside.lettered if key != letter.key]
            assert any(self.is_of(key, letter.event) for key in later)
        elif end.outcome == "dropped" and not self.outside.kills:
            lacks = [one for one in self.behind(letter) if not self.has(one.sink, one.id)]
            certain = not self.model.given_up(letter.source, letter.sequence)
            assert lacks or not self.behind(letter) or not certain, "it is there"

    def behind(self, letter: DeadLetter) -> list[Arrival]:
        """Where rows made from a replayed letter go, as steps are now."""
        if letter.source.endswith(BUFFER) or letter.stage in self.scripts:
            return []
        sinks = frozenset(self.world.sinks_behind(letter.stage))
        steps = self.world.reached_from(letter.stage)
        walked = walk(
            self.world, letter.source, letter.sequence, lambda *_: False, sinks, edition=letter.edition
        )
        return [
            one
            for one in walked
            if not isinstance(one, Ended)
            and made_from(one.row[2], letter.child, frozenset({letter.stage}) | sinks | steps)
            and not self.world.refuses(self.scripts[one.sink], one.id)
            and not self.model.may_lose(self.scripts[one.sink])
        ]

    def check_replayed_once(self) -> None:
        """Whatever was killed: a row that a replay has brought to a sink is brought by no other."""
        for sink, published in self.outside.published.items():
            replayed = [rows for key, rows in published.items() if _is_replay(key)]
            twice = {row: n for row, n in Counter(r for rows in replayed for r in rows).items() if n > 1}
            assert not twice, f"{sink} holds rows of several replays: {twice}"
        for sink, handed in self.outside.replayed.items():
            for row, times in Counter(row for rows in handed.values() for row in rows).items():
                tries = sum(letter.attempts for letter in self.machine.letters.get(row, sink))
                assert times <= 1 + tries, f"{row} was replayed into the log behind {sink} {times} times"

    # -- what the status says

    def check_status(self, graph: Graph, found: dict[str, Counter[str]], owing: set[str]) -> None:
        status = read_status(graph)
        for source, counts in found.items():
            said = status["sources"][source]
            if not counts["settled"]:
                assert {state: said[state] for state in _FINAL} == {state: counts[state] for state in _FINAL}
            assert said["in_flight"] == counts["in flight"] + counts["waiting"], (said, counts)
        self.check_metrics(graph, status)
        open_letters = self.machine.letters.list(brief=True)
        assert status["dead_letters"] == len(open_letters)
        assert {letter.key for letter in open_letters} <= self.outside.lettered.keys()
        assert not {letter.key for letter in open_letters} & self.by_hand
        for name, sink in status["sinks"].items():
            if sink["owes"]:
                assert name in owing, f"{name} is said to owe events, and owes none"
            if sink["failing_since"]:
                assert name in owing, f"{name} is said to fail, and owes nothing"
        gone = {name for name in self.scripts if name not in {sink.name for sink in self.world.sinks}}
        for name in status["gone"]:
            assert name.partition(".")[0] in gone
        for name, number in status["gone"].items():
            if "rows" in number:
                assert name in owing, f"{name} is gone, and owes nothing"

    def check_metrics(self, graph: Graph, status: Mapping[str, Any]) -> None:
        """What Prometheus is told adds up to the account."""
        registry = registry_of(graph, dict)
        for name, source in status["sources"].items():
            labels = {"pipeline": graph.name, "source": name}
            for outcome in (*_FINAL, "in_flight"):
                said = registry.get_sample_value("signoff_events", {**labels, "outcome": outcome})
                assert said == source[outcome], (name, outcome)
            assert registry.get_sample_value("signoff_events_received_total", labels) == source["received"]
        samples = [sample for metric in registry.collect() for sample in metric.samples]
        stored = sum(sample.value for sample in samples if sample.name == "signoff_dead_letters")
        assert stored == status["dead_letters"]


def _is_replay(key: str) -> bool:
    _, replayed, tag = key.rpartition("-replay")
    return bool(replayed) and is_of_letters(BatchRef("", 0, 0, int(tag)))


def run(seed: int, directory: Path) -> None:
    """One run; what fails says its seed, and how to have it again."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    one = ToldRun(seed, directory)
    try:
        one.go()
    except Exception as error:
        pipeline = "\n  ".join(map(str, (*one.world.sources, *one.world.steps, *one.world.sinks)))
        story = "\n  ".join(one.outside.story)
        raise AssertionError(
            f"SIGNOFF_MODEL_SEED={seed}: {error!r}\n\npipeline:\n  {pipeline}\n\nwhat happened:\n  {story}"
        ) from error


@pytest.mark.parametrize("block", blocks(_RUNS, _BLOCK))
def test_what_is_said_of_every_event_is_what_happened_to_it(block: int) -> None:
    seeds = [int(SEED)] if SEED else range(block * _BLOCK, min((block + 1) * _BLOCK, _RUNS))
    with machine_directory() as directory:
        for seed in seeds:
            run(seed, directory / "run")
