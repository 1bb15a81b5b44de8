"""Random graphs of steps, and a model of a few lines for each kind of step: what its rows become.

A row is what it was made from, its name, and its values; a step makes rows of rows, and says of some why
they do not go on. There is no Spark here, and no frame: what the model says does not depend on the order
in which a plan is made of it.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import signoff
from signoff.transforms.united_rows import united_child

SCHEMA = "n INT, k STRING, parts ARRAY<INT>"
COLUMNS = ("n", "k", "parts")
NAMES = {n: f"name {n % 2}" for n in range(6)}
"""The table of a `lookup`."""


@dataclass(frozen=True)
class Row:
    origins: tuple[int, ...]
    child: str
    values: Mapping[str, Any]

    @property
    def key(self) -> tuple[int, str]:
        return self.origins[0], self.child

    def made(self, part: str | None = None, **values: Any) -> Row:
        child = self.child if part is None else "/".join(filter(None, (self.child, part)))
        return replace(self, child=child, values={**self.values, **values})


Rows = list[Row]
Said = tuple[str, str, int, str]
"""Step, what it says, and the row by sequence and child."""


@dataclass
class Told:
    """What steps say of rows that do not go on."""

    said: Counter[Said] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    decided: frozenset[tuple[str, int, str]] = frozenset()
    """The rows that a `dedupe` has held back in the run that is looked at: nobody else knows which."""

    def say(self, step: str, kind: str, row: Row) -> None:
        for origin in row.origins:
            self.said[step, kind, origin, row.child] += 1


Apply = Callable[["Step", Rows, Told], dict[str, Rows]]


@dataclass(frozen=True)
class Step:
    name: str
    inputs: tuple[str, ...]
    fields: Mapping[str, Any]
    apply: Apply
    counted: bool
    """Whether rows that end here are counted: not behind a step that begins a part of the plan."""

    @property
    def unites(self) -> bool:
        return self.fields["type"] == "merge" or self.fields.get("mode") == "groups"


@dataclass(frozen=True)
class Port:
    columns: tuple[str, ...]
    frame: str
    """The ports whose rows are in one frame; '' is the one of the source."""


@dataclass(frozen=True)
class Sink:
    name: str
    inputs: tuple[str, ...]
    fails_at: int | None
    """It wants an expression computed that fails for rows with this n."""


@dataclass
class World:
    ports: dict[str, Port] = field(default_factory=lambda: {"parsed": Port(COLUMNS, "")})
    steps: dict[str, Step] = field(default_factory=dict)
    sinks: dict[str, Sink] = field(default_factory=dict)

    def has(self, kind: str) -> bool:
        return any(step.fields["type"] == kind for step in self.steps.values())

    def downstream(self, name: str) -> set[str]:
        found: set[str] = set()
        for node in (*self.steps.values(), *self.sinks.values()):
            if any(node_of(port) in found | {name} for port in node.inputs):
                found.add(node.name)
        return found

    def is_united_behind(self, name: str) -> bool:
        """Whether rows of a node, or what is made of them, become one with others."""
        return any(self.steps[node].unites for node in self.downstream(name) | {name} if node in self.steps)

    def upstream(self, name: str) -> set[str]:
        return {other for other in self.steps if name in self.downstream(other)}

    def rows_of(
        self,
        events: Rows,
        told: Told,
        leads: Callable[[str, str], bool] = lambda before, node: True,
        only: tuple[str, Callable[[Row], bool]] | None = None,
    ) -> dict[str, Rows]:
        """What comes to each sink, and out of each port. `leads`: the inputs that are in the plan. `only`: a
        step, and the rows that it gets."""
        found: dict[str, Rows] = {"parsed": events}
        for step in self.steps.values():
            ports = [port for port in step.inputs if port in found and leads(node_of(port), step.name)]
            if not ports:
                continue
            rows = self._together(step.inputs, {port: found[port] for port in ports})
            if only is not None and only[0] == step.name:
                rows = [row for row in rows if only[1](row)]
            for output, made in step.apply(step, rows, told).items():
                found[f"{step.name}.{output}" if output else step.name] = made
        for sink in self.sinks.values():
            ports = [port for port in sink.inputs if port in found and leads(node_of(port), sink.name)]
            if ports:
                rows = self._together(sink.inputs, {port: found[port] for port in ports})
                found[sink.name] = _without_failed(told, sink, rows)
        return found

    def rows_before(self, node: str, events: Rows) -> Rows:
        """What comes to a step, or what the source gives."""
        if node == "parsed":
            return events
        found: Rows = []

        def note(row: Row) -> bool:
            found.append(row)
            return True

        self.rows_of(events, Told(), only=(node, note))
        return found

    def _together(self, inputs: Sequence[str], given: Mapping[str, Rows]) -> Rows:
        columns = dict.fromkeys(c for port in given for c in self.ports[port].columns)
        return [
            row.made(port if len(inputs) > 1 else None, **{c: row.values.get(c) for c in columns})
            for port, rows in given.items()
            for row in rows
        ]


def node_of(port: str) -> str:
    return port.partition(".")[0]


def _without_failed(told: Told, sink: Sink, rows: Rows) -> Rows:
    if sink.fails_at is None:
        return rows
    return _attempted(told, sink.name, rows, sink.fails_at)


def _attempted(told: Told, step: str, rows: Rows, fails_at: int | None) -> Rows:
    """Without the rows for which an expression fails."""
    for row in rows:
        if row.values["n"] == fails_at:
            told.say(step, "error", row)
    return [row for row in rows if row.values["n"] != fails_at]


# -- the steps


def random_world(seed: int) -> World:
    rng, world = random.Random(seed), World()
    kinds = rng.sample(list(KINDS), rng.randint(3, len(KINDS)))
    for number in range(rng.randint(*rng.choice([(3, 6), (6, 12)]))):
        kind = rng.choice(kinds)
        inputs = _some_ports(world, rng, most=3 if kind in ("merge", "groups") else 2)
        _add(world, kind, f"{kind}{number}", inputs, rng)
    for number in range(rng.randint(2, 5)):
        fails_at = rng.choice([None, None, None, 1, 4])
        world.sinks[f"sink{number}"] = Sink(f"sink{number}", _some_ports(world, rng, most=3), fails_at)
    _prune(world)
    return world


def _some_ports(world: World, rng: random.Random, most: int) -> tuple[str, ...]:
    number = rng.choice([1] * 3 + list(range(2, most + 1)))
    late = list(world.ports)[-rng.choice([2, 4, 8, 99]) :]
    return tuple(rng.sample(late, min(number, len(late))))


def _add(world: World, kind: str, name: str, inputs: tuple[str, ...], rng: random.Random) -> None:
    given = [world.ports[port] for port in inputs]
    columns = tuple(dict.fromkeys(c for port in given for c in port.columns))
    frames = {port.frame for port in given}
    frame = frames.pop() if len(frames) == 1 else name
    fields, apply, outputs = KINDS[kind](rng)
    world.steps[name] = Step(name, inputs, fields, apply, counted=not frame)
    if kind in ("merge", "groups", "frame"):
        frame = name
    for output, change in outputs.items():
        port = f"{name}.{output}" if output else name
        world.ports[port] = Port(change(columns), frame)


def _prune(world: World) -> None:
    """Without the steps that nobody reads."""
    read = {node_of(port) for sink in world.sinks.values() for port in sink.inputs}
    for name, step in reversed(world.steps.copy().items()):
        if name in read:
            read |= {node_of(port) for port in step.inputs}
        else:
            del world.steps[name]


Columns = tuple[str, ...]
Made = tuple[dict[str, Any], Apply, dict[str, Callable[[Columns], Columns]]]


def _same(columns: Columns) -> Columns:
    return columns


def _plain(columns: Columns) -> Columns:
    return COLUMNS


def _fails(rng: random.Random) -> int | None:
    return rng.choice([None, None, 0, 1, 2, 5])


def sql_of_n(fails_at: int | None) -> str:
    """An expression of n; one that fails for a value of it."""
    return "n" if fails_at is None else f"CAST(IF(n = {fails_at}, 'x', CAST(n AS STRING)) AS INT)"


def _filter(rng: random.Random) -> Made:
    by, fails_at = rng.choice([2, 3, 4]), _fails(rng)
    also = rng.choice(["", "", " AND rand() >= 0", " AND current_timestamp() > TIMESTAMP '2001-01-01'"])

    def apply(step: Step, rows: Rows, told: Told) -> dict[str, Rows]:
        whole = _attempted(told, step.name, rows, fails_at)
        kept = [row for row in whole if row.values["n"] % by != 1]
        told.ended[step.name] += len(whole) - len(kept)
        return {"": kept}

    return {"type": "filter", "where": f"{sql_of_n(fails_at)} % {by} <> 1{also}"}, apply, {"": _same}


def _route(rng: random.Random) -> Made:
    fails_at, no_match = _fails(rng), rng.choice(["drop", "dead_letter"])
    routes = {"even": (2, 0), "third": (3, 0)} | rng.choice([{}, {"odd": (2, 1)}, {"all": (1, 0)}])

    def apply(step: Step, rows: Rows, told: Told) -> dict[str, Rows]:
        whole = _attempted(told, step.name, rows, fails_at)
        found = {
            name: [row for row in whole if row.values["n"] % by == rest]
            for name, (by, rest) in routes.items()
        }
        for row in whole:
            if not any(row in chosen for chosen in found.values()):
                if no_match == "drop":
                    told.ended[step.name] += 1
                else:
                    told.say(step.name, "error", row)
        return found

    conditions = {name: f"{sql_of_n(fails_at)} % {by} = {rest}" for name, (by, rest) in routes.items()}
    fields = {"type": "route", "routes": conditions, "no_match": no_match}
    return fields, apply, dict.fromkeys(routes, _same)


def _select(rng: random.Random) -> Made:
    fails_at = _fails(rng)
    more, text = rng.choice([(0, ""), (1, " + 1"), (0, " + CAST(floor(rand()) AS INT)")])

    def apply(step: Step, rows: Rows, told: Told) -> dict[str, Rows]:
        whole = _attempted(told, step.name, rows, fails_at)
        return {"": [row.made(n=row.values["n"] + more) for row in whole]}

    def only_known(step: Step, rows: Rows, told: Told) -> dict[str, Rows]:
        made = apply(step, rows, told)[""]
        return {"": [replace(row, values={c: row.values[c] for c in COLUMNS}) for row in made]}

    columns = {"n": f"{sql_of_n(fails_at)}{text}", "k": "k", "parts": "parts"}
    return {"type": "select", "columns": columns}, only_known, {"": _plain}


def _unfold(rng: random.Random) -> Made:
    fails_at, flat = _fails(rng), rng.random() < 0.4
    array = f"transform(parts, x -> {sql_of_n(fails_at)} * 0 + x)" if fails_at is not None else "parts"
    fields: dict[str, Any] = {"type": "unfold", "column": f"slice({array}, 1, 2)", "as": "n"}
    if flat:
        fields = {"type": "unfold", "column": f"transform({array}, x -> struct(x AS n))", "flatten": True}

    def apply(step: Step, rows: Rows, told: Told) -> dict[str, Rows]:
        found: Rows = []
        for row in rows:
            parts = row.values["parts"]
            if parts and row.values["n"] == fails_at:  # of no element nothing is computed
                told.say(step.name, "error", row)
                continue
            parts = parts if flat else parts[:2]
            told.ended[step.name] += not parts
            found += [row.made(str(place), n=part) for place, part in enumerate(parts)]
        return {"": found}

    return fields, apply, {"": _same}


def _validate(rng: random.Random) -> Made:
    fails_at, invalid = _fails(rng), rng.choice(["error", "output"])
    rules = {"no_three": f"{sql_of_n(fails_at)} % 4 <> 3", "small": "n < 9"}

    def apply(step: Step, rows: Rows, told: Told) -> dict[str, Rows]:
        valid: Rows = []
        broken: Rows = []
        for row in _attempted(told, step.name, rows, fails_at):
            n = row.values["n"]
            names = [name for name, holds in (("no_three", n % 4 != 3), ("small", n < 9)) if not holds]
            if not names:
                valid.append(row)
            elif invalid == "error":
                told.say(step.name, "error", row)
            else:
                broken.append(row.made(**{into: names}))
        return {"": valid} | ({"invalid": broken} if invalid == "output" else {})

    into = f"broken{rng.randint(0, 10**9)}"
    outputs: dict[str, Callable[[Columns], Columns]] = {"": _same}
    if invalid == "output":
        outputs["invalid"] = lambda columns: (*columns, into)
    return {"type": "validate", "rules": rules, "invalid": invalid, "broken_into": into}, apply, outputs


def _sample(rng: random.Random) -> Made:
    fraction = rng.choice([1.0, 1.0, 0.0])

    def apply(step: Step, rows: Rows, told: Told) -> dict[str, Rows]:
        kept = rows if fraction else []
        told.ended[step.name] += len(rows) - len(kept)
        return {"": kept}

    return {"type": "sample", "fraction": fraction}, apply, {"": _same}


def _lookup(rng: random.Random) -> Made:
    missing = rng.choice(["null", "drop", "error"])

    def apply(step: Step, rows: Rows, told: Told) -> dict[str, Rows]:
        there = [row for row in rows if row.values["n"] in NAMES]
        if missing != "null":
            for row in rows:
                if row not in there:
                    told.say(step.name, "dropped" if missing == "drop" else "error", row)
        going = rows if missing == "null" else there
        return {"": [row.made(k=NAMES.get(row.values["n"])) for row in going]}

    table = {"path": "names.csv", "schema": "n INT, k STRING"}
    fields = {"type": "lookup", "from": table, "keys": ["n"], "columns": ["k"], "on_missing": missing}
    return fields, apply, {"": _same}


def same(row: dict[str, Any]) -> Any:
    return {name: row[name] for name in COLUMNS}


def pieces(row: dict[str, Any]) -> Any:
    n, one = row["n"], same(row)
    if n == 7:
        raise ValueError("seven")
    ways: list[Any] = [None, one, [one, one | {"n": n + 1}], [one, signoff.drop("not"), signoff.fail("no")]]
    if n == 10:
        return signoff.fail("not now", transient=True)
    return ways[n % 4]


def _rows(rng: random.Random) -> Made:
    function = rng.choice([same, pieces])

    def apply(step: Step, rows: Rows, told: Told) -> dict[str, Rows]:
        found: Rows = []
        for row in rows:
            try:
                result = function(dict(row.values))
            except ValueError as error:
                result = error
            if result is None or result == []:
                told.ended[step.name] += 1
            each = [(str(i), one) for i, one in enumerate(result)] if isinstance(result, list) else None
            for part, one in each or ([(None, result)] if result is not None else []):
                if isinstance(one, dict):
                    found.append(replace(row.made(part), values=one))
                else:
                    told.say(step.name, _kind(one), row.made(part))
        return {"": found}

    named = f"{__name__}:{function.__name__}"
    fields = {"type": "python", "mode": "rows", "function": named, "schema": SCHEMA}
    return fields, apply, {"": _plain}


def _kind(said: BaseException) -> str:
    if isinstance(said, type(signoff.drop(""))):
        return "dropped"
    return "waits" if getattr(said, "transient", False) else "error"


def one_each(events: list[dict[str, Any]]) -> Any:
    first = same(events[0])
    if len(events) == 1:
        return first
    if len(events) % 3 == 0:
        raise ValueError("three")
    return [
        signoff.unite(events[:1], first | {"n": len(events)}),
        signoff.unite(events[1:2], signoff.fail("the second")),
        signoff.unite(events, first),
    ]


def one_of_all(events: list[dict[str, Any]]) -> Any:
    return same(events[-1]) | {"n": len(events)}


def _groups(rng: random.Random) -> Made:
    function = rng.choice([one_each, one_of_all])

    def apply(step: Step, rows: Rows, told: Told) -> dict[str, Rows]:
        found: Rows = []
        for members in _grouped(rows, lambda row: (row.values["k"] is None, row.values["k"] or "")):
            ordered = sorted(members, key=lambda row: row.key)
            if function is one_of_all:
                values = same(dict(ordered[-1].values)) | {"n": len(ordered)}
                found.append(_united(ordered, values))
            elif len(ordered) == 1:
                found.append(_united(ordered, same(dict(ordered[0].values))))
            elif len(ordered) % 3 == 0:
                for row in ordered:
                    told.say(step.name, "error", row)
            else:
                first = same(dict(ordered[0].values))
                found.append(_united(ordered[:1], first | {"n": len(ordered)}, "/0"))
                told.say(step.name, "error", ordered[1])
                found.append(_united(ordered, first, "/2"))
        return {"": found}

    named = f"{__name__}:{function.__name__}"
    fields = {"type": "python", "mode": "groups", "keys": ["k"], "function": named, "schema": SCHEMA}
    return fields, apply, {"": _plain}


def _united(members: Rows, values: Mapping[str, Any], suffix: str = "", child: str | None = None) -> Row:
    origins = tuple(sorted({origin for row in members for origin in row.origins}))
    made = united_child(row.key for row in members) + suffix if child is None else child
    return Row(origins, made, values)


def _grouped(rows: Rows, key: Callable[[Row], Any]) -> list[Rows]:
    return [list(group) for _, group in groupby(sorted(rows, key=key), key=key)]


def unchanged(df: DataFrame) -> DataFrame:
    return df


def without_twos(df: DataFrame) -> DataFrame:
    return df.where("n % 5 <> 2")


def with_a_udf(df: DataFrame) -> DataFrame:
    return df.withColumn("n", F.udf(lambda n: n, "int")("n"))


def _frame(rng: random.Random) -> Made:
    function = rng.choice([unchanged, without_twos, with_a_udf])

    def apply(step: Step, rows: Rows, told: Told) -> dict[str, Rows]:
        return {"": [row for row in rows if function is not without_twos or row.values["n"] % 5 != 2]}

    return {"type": "python", "function": f"{__name__}:{function.__name__}"}, apply, {"": _same}


def _merge(rng: random.Random) -> Made:
    keys = rng.choice([(), ("k",)])
    expressions = rng.choice([None, None, "max", "argument", "result"])
    columns = {"n": "max(n)", "parts": "first(parts)"} | ({} if keys else {"k": "max(k)"})
    if expressions == "argument":
        columns["n"] = f"max({sql_of_n(2)})"
    if expressions == "result":
        columns["n"] = "CAST(10 / (count(*) - 2) AS INT)"

    def apply(step: Step, rows: Rows, told: Told) -> dict[str, Rows]:
        if expressions == "argument":
            rows = _attempted(told, step.name, rows, 2)
        found: Rows = []
        place = {name: at for at, name in enumerate(step.inputs)}

        def of(row: Row) -> Any:
            return (row.values["k"] is None, row.values["k"] or "") if keys else (row.key[0], _row(row.child))

        for members in _grouped(rows, of):
            ordered = sorted(
                members, key=lambda row: (row.key[0], place.get(row.child.rpartition("/")[2], 0), row.child)
            )
            if expressions == "result" and len(ordered) == 2:
                for row in ordered:
                    told.say(step.name, "error", row)
                continue
            found.append(_united(ordered, values(ordered), child=None if keys else of(ordered[0])[1]))
        return {"": found}

    def values(ordered: Rows) -> dict[str, Any]:
        if expressions is None:
            names = dict.fromkeys(name for row in ordered for name in row.values)
            return {name: _first(row.values[name] for row in ordered) for name in names}
        most = max(row.values["n"] for row in ordered)
        n = int(10 / (len(ordered) - 2)) if expressions == "result" else most
        texts = [row.values["k"] for row in ordered if row.values["k"] is not None]
        k = ordered[0].values["k"] if keys else max(texts, default=None)
        return {"k": k, "n": n, "parts": ordered[0].values["parts"]}

    fields: dict[str, Any] = {"type": "merge", "keys": keys}
    if expressions is not None:
        fields["columns"] = columns
    return fields, apply, {"": _same if expressions is None else _plain}


def _row(child: str) -> str:
    return re.sub(r"(^|/)[^/~][^/]*$", "", child)


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _dedupe(rng: random.Random) -> Made:
    keys = rng.choice([["k"], ["n"], ["n", "k"]])

    def apply(step: Step, rows: Rows, told: Told) -> dict[str, Rows]:
        kept = [row for row in rows if (step.name, *row.key) not in told.decided]
        for row in rows:
            if row not in kept:
                told.say(step.name, "held", row)
        by_key: Counter[Any] = Counter()
        for row in rows:
            key = tuple(row.values[name] for name in keys)
            if None not in key:
                by_key[key] += row in kept
            else:
                assert row in kept, "a row without a key repeats none"
        assert all(kept >= 1 for kept in by_key.values()), f"{step.name} let none of a key through: {by_key}"
        return {"": kept}

    return {"type": "dedupe", "keys": keys}, apply, {"": _same}


KINDS: dict[str, Callable[[random.Random], Made]] = {
    "filter": _filter,
    "route": _route,
    "select": _select,
    "unfold": _unfold,
    "validate": _validate,
    "sample": _sample,
    "lookup": _lookup,
    "rows": _rows,
    "groups": _groups,
    "frame": _frame,
    "merge": _merge,
    "dedupe": _dedupe,
}


def write_table(directory: Path) -> None:
    """For lookups."""
    lines = ["n,k", *(f"{n},{name}" for n, name in NAMES.items())]
    (directory / "names.csv").write_text("\n".join(lines) + "\n")
