"""What must become of every event, said without the engine: a small reference model of settlement.

A `World` is a random pipeline with its events, and how steps and sinks will behave; everything in it
follows from a seed. `walk` says what the steps make of one event; the simulated Spark of `simulated_run` uses
it, too, for that is Spark's part, and not what is tested here. `Model` says what must have become of an event
at the end, as a set where a race or a bounded number of tries leaves it open.

It knows nothing of batches, rounds, parking, links, ledgers or crashes: none of them may make a difference.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from signoff.pipeline.model import OnFailure

Fate = Literal["dropped", "delivered", "dead_lettered", "refused", "expired"]
RANK: tuple[Fate, ...] = ("dropped", "delivered", "dead_lettered", "refused", "expired")
"""The worst of its rows is what an event counts as."""
BY_POLICY: dict[OnFailure, Fate] = {"dead_letter": "dead_lettered", "refuse": "refused", "drop": "dropped"}

Row = tuple[str, int, str]
"""Source, sequence, child."""


@dataclass(frozen=True)
class NodeScript:
    """One step."""

    name: str
    kind: Literal["filter", "route", "unfold", "step", "dedupe"]
    inputs: tuple[tuple[str, str | None], ...]
    policy: OnFailure
    tries: int | None = None
    """Of a `step`, which may fail for now: how often it is tried; None: for ever."""
    places: int = 0
    """Of a `dedupe`: not 0 makes it a throttle that lets so many rows through in an interval."""


@dataclass(frozen=True)
class SinkScript:
    """One sink, and what it does with rows."""

    name: str
    inputs: tuple[tuple[str, str | None], ...]
    policy: OnFailure
    tries: int | None
    kind: Literal["rows", "batches", "pipeline"]
    """`rows`: signs row by row. `batches`: publishes a batch at once. `pipeline`: another pipeline."""
    buffer: Literal["", "awaited", "signs"]
    drops_newest: bool
    authoritative: bool
    best_effort: bool
    refuses: float
    """The share of rows it never takes."""
    shaky: float
    """The share of rows it does not take the first times."""
    outages: bool
    """Whether it is down at times."""
    place: str = ""
    """Where a sink that was renamed keeps its batches: the name it had first."""

    @property
    def kept_at(self) -> str:
        return self.place or self.name


@dataclass(frozen=True)
class SourceScript:
    name: str
    events: int
    fail_fast: bool


@dataclass
class World:
    """A pipeline and its events."""

    seed: int
    sources: tuple[SourceScript, ...] = ()
    steps: tuple[NodeScript, ...] = ()
    sinks: tuple[SinkScript, ...] = ()
    decide: Callable[[str, Row], Literal["passes", "drops", "waits"]] = lambda *_: "passes"
    """What a dedupe says of a row; only a run knows."""
    mended: float = 0.0
    """The share of rows that steps and sinks take now, although they never did before."""
    _reached: dict[str, frozenset[str]] = field(default_factory=dict)

    def chance(self, *what: object) -> float:
        """A number that is always the same for the same thing."""
        return random.Random(f"{self.seed} {what}").random()

    def reached_from(self, source: str) -> frozenset[str]:
        """The steps and sinks that rows of a source can come to."""
        if source not in self._reached:
            found: set[str] = {source}
            for node in (*self.steps, *self.sinks):
                if any(name in found for name, _ in node.inputs):
                    found.add(node.name)
            self._reached[source] = frozenset(found - {source})
        return self._reached[source]

    def sinks_behind(self, step: str) -> set[str]:
        return {sink.name for sink in self.sinks} & self.reached_from(step)

    def rename_sink(self, sink: SinkScript) -> None:
        """From now on it has another name, and keeps its batches where it has kept them."""
        renamed = replace(sink, name=sink.name.swapcase(), place=sink.kept_at)
        self.sinks = tuple(renamed if each == sink else each for each in self.sinks)
        self._reached.clear()

    # -- how steps and sinks behave

    def step_says(self, step: str, row: Row) -> Literal["passes", "fails", "drops"]:
        """What a step says of a row in the end."""
        chance = self.chance("says", step, row)
        if chance < 0.1:
            return "passes" if self.is_mended(step, row) else "fails"
        return "drops" if chance < 0.2 else "passes"

    def is_mended(self, *what: object) -> bool:
        return self.chance("mended", *what) < self.mended

    def step_stumbles(self, step: str, row: Row) -> frozenset[int]:
        """Which of the times it is run for a row a step fails for now."""
        if self.chance("stumbles", step, row) > 0.3:
            return frozenset()
        return frozenset(n for n in range(4) if self.chance("stumble", step, row, n) < 0.5)

    def refuses(self, sink: SinkScript, row_id: str) -> bool:
        refuses = self.chance("refuses", sink.name, row_id) < sink.refuses
        return refuses and not self.is_mended(sink.name, row_id)

    def stumbles(self, sink: SinkScript, row_id: str) -> int:
        """How often a sink fails for a row before it takes it."""
        return 1 + int(self.chance(sink.name, row_id) * 3) if self.is_shaky(sink, row_id) else 0

    def is_shaky(self, sink: SinkScript, row_id: str) -> bool:
        return self.chance("shaky", sink.name, row_id) < sink.shaky


def random_world(seed: int) -> World:
    """A pipeline of a few nodes: fan-out, routes, diamonds, several sources, buffers, policies."""
    rng = random.Random(seed)
    policies: tuple[OnFailure, ...] = ("dead_letter", "dead_letter", "refuse", "drop")
    sources = [
        SourceScript(f"s{n}", rng.randint(1, 8), rng.random() < 0.25) for n in range(rng.choice((1, 1, 2)))
    ]
    ports: list[tuple[str, str | None]] = [(source.name, None) for source in sources]
    steps: list[NodeScript] = []
    met: set[tuple[str, str | None]] = set()
    for number in range(rng.choice((0, 1, 1, 2, 3, 4))):
        kind = rng.choice(("filter", "route", "unfold", "step", "step"))
        inputs = tuple(rng.sample(ports, min(len(ports), rng.choice((1, 1, 1, 2)))))
        if len(inputs) > 1 and met & set(inputs):
            inputs = inputs[:1]  # rows of the same name would come by two ways
        met |= set(inputs) if len(inputs) > 1 else set()
        tries = rng.choice((None, None, 2, 3)) if kind == "step" else None
        name = f"t{number}"
        steps.append(NodeScript(name, kind, inputs, rng.choice(policies), tries))  # type: ignore[arg-type]
        outputs = [(name, "a"), (name, "b")] if kind == "route" else [(name, None)]
        ports += outputs  # type: ignore[arg-type]
    sinks: list[SinkScript] = []
    used = {name for step in steps for name, _ in step.inputs}
    idle = [port for port in ports if port[0] not in used]
    for number in range(rng.choice((1, 2, 2, 3))):
        inputs = tuple(rng.sample(ports, min(len(ports), rng.choice((1, 1, 1, 2)))))
        if number == 0:  # nothing may be read by nobody
            inputs = tuple(dict.fromkeys((*inputs, *idle)))
        sinks.append(_random_sink(rng, f"k{number}", inputs, rng.choice(policies)))
    world = World(seed, tuple(sources), tuple(steps), tuple(sinks))
    if len(sinks) > 1 and rng.random() < 0.2:
        chosen = rng.randrange(len(sinks))
        made = sinks[chosen]
        sinks[chosen] = SinkScript(**{**made.__dict__, "authoritative": True, "best_effort": False})
        world.sinks = tuple(sinks)
    return world


def _random_sink(
    rng: random.Random, name: str, inputs: tuple[tuple[str, str | None], ...], policy: OnFailure
) -> SinkScript:
    kind = rng.choice(("rows", "rows", "rows", "batches", "pipeline"))
    buffer = rng.choice(("", "", "awaited", "signs")) if kind != "pipeline" else ""
    return SinkScript(
        name, inputs, policy,
        tries=rng.choice((None, None, None, 1, 3)) if kind != "pipeline" else None,
        kind=kind,  # type: ignore[arg-type]
        buffer=buffer,  # type: ignore[arg-type]
        drops_newest=bool(buffer) and rng.random() < 0.25,
        authoritative=False,
        best_effort=kind != "pipeline" and rng.random() < 0.1,
        # One that publishes whole batches does not choose among rows.
        refuses=0.0 if kind == "batches" else rng.choice((0.0, 0.0, 0.2)),
        shaky=0.0 if kind != "rows" else rng.choice((0.0, 0.0, 0.3)),
        outages=kind != "pipeline" and rng.random() < 0.4,
    )  # fmt: skip


# -- what the steps make of an event


@dataclass(frozen=True)
class End:
    """A row that a step did not pass on, and said so."""

    step: str
    row: Row
    says: Literal["fails", "drops", "waits"]


@dataclass(frozen=True)
class Arrival:
    """A row that comes to a sink."""

    sink: str
    row: Row
    plain: Row
    """Without the name of the input that is put behind it where several meet at the sink."""
    delivery: int
    """Which of the sink's inputs it came by."""

    @property
    def id(self) -> str:
        return row_id(self.row)


Waits = Callable[[str, Row], bool]
"""Whether a step fails for now for a row."""


def row_id(row: Row) -> str:
    return "/".join(str(part) for part in row if part != "")


def behind(row: Row, suffix: str) -> Row:
    """A row made from another."""
    return row[0], row[1], f"{row[2]}/{suffix}" if row[2] else suffix


Hears = Callable[[Literal["reached", "left out"], str, Row], None]
"""Told which rows come to a step, and which of them it leaves out without a word."""


def walk(
    world: World,
    source: str,
    sequence: int,
    waits: Waits,
    sinks: frozenset[str] | None = None,
    hears: Hears = lambda *_: None,
    edition: str = "",
) -> Iterator[End | Arrival]:
    """What becomes of an event on the way to some sinks, or all. `edition`: of a corrected one."""
    rows: dict[tuple[str, str | None], list[Row]] = {(source, None): [(source, sequence, edition)]}
    reached = world.reached_from(source)
    for step in world.steps:
        wanted = sinks is None or world.sinks_behind(step.name) & sinks
        if step.name not in reached or not wanted:
            continue
        incoming = _incoming(world, source, step.inputs, rows)
        for row, _, _ in incoming:
            hears("reached", step.name, row)
            before = sum(map(len, rows.values()))
            ended = list(_step(world, step, row, waits, rows))
            if not ended and sum(map(len, rows.values())) == before:
                hears("left out", step.name, row)
            yield from ended
    for sink in world.sinks:
        if sink.name in reached and (sinks is None or sink.name in sinks):
            for row, plain, number in _incoming(world, source, sink.inputs, rows):
                yield Arrival(sink.name, row, plain, number)


def _incoming(
    world: World,
    source: str,
    inputs: tuple[tuple[str, str | None], ...],
    rows: dict[tuple[str, str | None], list[Row]],
) -> list[tuple[Row, Row, int]]:
    """Rows that come in; where several inputs of one source meet, each has the input's name behind it."""
    mine = [port for port in inputs if port[0] == source or port[0] in world.reached_from(source)]
    return [
        (behind(row, ".".join(filter(None, port))) if len(mine) > 1 else row, row, mine.index(port))
        for port in mine
        for row in rows.get(port, ())
    ]


def _step(
    world: World, step: NodeScript, row: Row, waits: Waits, rows: dict[tuple[str, str | None], list[Row]]
) -> Iterator[End]:
    out = rows.setdefault((step.name, None), [])
    chance = world.chance("row", step.name, row)
    if step.kind == "filter":
        out += [row] if chance < 0.7 else []
    elif step.kind == "unfold":
        out += [behind(row, str(n)) for n in range(int(chance * 4))]
    elif step.kind == "route" and chance < 0.9:
        rows.setdefault((step.name, "a" if chance < 0.45 else "b"), []).append(row)
    elif step.kind == "route":
        yield End(step.name, row, "fails")
    elif step.kind == "dedupe":
        if (decided := world.decide(step.name, row)) == "passes":
            out.append(row)
        else:
            yield End(step.name, row, decided)
    elif waits(step.name, row):
        yield End(step.name, row, "waits")
    elif (says := world.step_says(step.name, row)) != "passes":
        yield End(step.name, row, says)  # type: ignore[arg-type]
    else:
        out.append(row)


# -- what must become of it


class Model:
    """What must have become of the events of a world, when all is done."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sinks = {sink.name: sink for sink in world.sinks}
        self.steps = {step.name: step for step in world.steps}

    def awaited(self, sink: SinkScript, source: str) -> bool:
        """Whether an event is acknowledged only when this sink has its rows."""
        if sink.best_effort or sink.buffer == "signs":
            return False
        if sink.kind == "pipeline":  # also beside an authoritative sink: what it refuses is to be heard
            return True
        others = [other for other in self.world.sinks if other.name in self.world.reached_from(source)]
        return sink.authoritative or not any(other.authoritative for other in others)

    def hands_on(self, sink: SinkScript) -> bool:
        """Whether its rows go through a log of their own."""
        sources = [s.name for s in self.world.sources if sink.name in self.world.reached_from(s.name)]
        free = any(not self.awaited(sink, source) for source in sources)
        return sink.kind == "pipeline" or bool(sink.buffer) or free

    def may_lose(self, sink: SinkScript) -> bool:
        """Whether rows are dropped when its buffer is full."""
        return sink.drops_newest or (sink.best_effort and not sink.buffer)

    def at_sink(self, sink: SinkScript, row: str) -> set[Fate]:
        """What becomes of a row that comes to a sink itself."""
        if self.world.refuses(sink, row):
            return {BY_POLICY[sink.policy]}
        uncertain = sink.tries is not None and (sink.outages or self.world.stumbles(sink, row))
        return {"delivered", BY_POLICY[sink.policy]} if uncertain else {"delivered"}

    def arrived(self, arrival: Arrival) -> set[Fate]:
        """What a row that comes to a sink means for its event."""
        sink = self.sinks[arrival.sink]
        awaited = self.awaited(sink, arrival.row[0])
        fates: set[Fate] = self.at_sink(sink, arrival.id) if awaited else {"delivered"}
        return fates | ({"dropped"} if self.may_lose(sink) and self.hands_on(sink) else set())

    def ended(self, end: End) -> Fate:
        return BY_POLICY[self.steps[end.step].policy] if end.says == "fails" else "dropped"

    def given_up(self, source: str, sequence: int) -> set[End]:
        """Rows for which a step may be given up, having failed for now too often."""
        found = set()

        def note(step: str, row: Row) -> bool:
            if self.steps[step].tries is not None and self.world.step_stumbles(step, row):
                found.add(End(step, row, "fails"))
            return False

        list(walk(self.world, source, sequence, note))
        return found

    def outcomes(self, source: str, sequence: int) -> set[Fate]:
        """What an event may count as when all is done, unless it expired."""
        found: set[Fate] = {"dropped"}
        uncertain = {self.ended(end) for end in self.given_up(source, sequence)}
        for one in walk(self.world, source, sequence, lambda *_: False):
            fates = self.arrived(one) if isinstance(one, Arrival) else {self.ended(one)}
            if uncertain:  # it may not have come this far
                fates = fates | {"dropped"}
            found = {max(a, b, key=RANK.index) for a in found for b in fates}
        return found | {max(a, b, key=RANK.index) for a in found for b in uncertain}

    def rows_of(self, source: str, sequence: int) -> list[Arrival]:
        walked = walk(self.world, source, sequence, lambda *_: False)
        return [one for one in walked if isinstance(one, Arrival)]
