"""One pipeline of several texts: includes, a profile, overlays, and values from the command line.

In this order, from the general to the particular:

    FILE and what it includes     parts of one pipeline: what two of them say is a conflict
    a profile of FILE             laid over it
    each --overlay, in order      laid over that, with its own includes and profile
    for_each                      one node becomes several (see `for_each`)
    --set PATH=VALUE              single values, of nodes that are there

Laying over: mappings are laid over key by key, all else is replaced, null takes away. A node that is given
another `type` is replaced, but for its inputs. Invariant: every value knows the file and the line it was
written in, however it came to its place. Paths in fields are relative to FILE wherever they are written, as
if all of it stood there; the paths of `include` are relative to the file that has them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from signoff.errors import Line, PipelineError, Problem, is_bare
from signoff.pipeline.model import KINDS
from signoff.pipeline.suggestions import suggestion
from signoff.pipeline.syntax import BadYaml, Place, Repeated, parse

INCLUDE, PROFILES = "include", "profiles"
SECTIONS = tuple(f"{kind}s" for kind in KINDS)
_UNITS = (*SECTIONS, "tests", PROFILES)
"""Fields whose entries are in one file each."""
_WIRING = ("input", "inputs")
_MOST_STEPS = 32
VARIABLE = "SIGNOFF_PROFILE"


@dataclass(frozen=True)
class Layers:
    """What is laid over a pipeline file."""

    overlays: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    """`path=value`, as they were written."""
    profiles: tuple[str, ...] = ()

    def to_json(self) -> dict[str, list[str]]:
        """For the engine's process; overlays are found there from any directory."""
        return {
            "overlays": [str(Path(name).absolute()) for name in self.overlays],
            "sets": list(self.sets),
            "profiles": list(self.profiles),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Sequence[str]]) -> Layers:
        return cls(**{name: tuple(each) for name, each in content.items()})


_chosen: ContextVar[Layers | None] = ContextVar("layers", default=None)


def chosen() -> Layers:
    """What the command line says; the profile, if it says none, is that of the environment."""
    found = _chosen.get() or Layers()
    if found.profiles:
        return found
    named = tuple(filter(None, (name.strip() for name in os.environ.get(VARIABLE, "").split(","))))
    return Layers(found.overlays, found.sets, named)


def choose(layers: Layers | None) -> None:
    """What `load` takes from now on where it is given none; None: nothing."""
    _chosen.set(layers)


@dataclass
class Text:
    """What one or more files say, and where each value of it stands."""

    file: str
    value: dict[str, Any]
    lines: dict[Place, int] = field(default_factory=dict)
    repeated: list[Repeated] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, code: str, message: str, place: Place, hint: str = "") -> None:
        while place and place not in self.lines:
            place = place[:-1]
        self.problems.append(Problem(code, message, hint, self.file, self.lines.get(place, 0)))

    def where(self, place: Place) -> str:
        """File and line of a value, for a sentence."""
        line = self.lines.get(place, 0)
        return f"{line.file if isinstance(line, Line) else self.file}:{int(line)}"


def text_of(content: str, file: str, main: str = "") -> Text:
    """The text of one file, without what it includes. Raises PipelineError when it is no YAML."""
    try:
        document = parse(content)
    except BadYaml as error:
        raise PipelineError([error.problem(file)]) from None
    if not isinstance(document.value, dict):
        got = "is empty" if document.value is None else "is not a mapping"
        problem = Problem("bad-yaml", f"the file {got}", "it needs name:, sources: and sinks:", file, 1)
        raise PipelineError([problem])
    lines: dict[Place, int] = dict(document.lines)
    repeated = document.repeated
    if main and file != main:
        lines = {place: Line(number, file) for place, number in lines.items()}
        repeated = [Repeated(each.place, Line(each.line, file), each.first_line) for each in repeated]
    return Text(file, document.value, lines, repeated)


# -- includes


@dataclass
class Includes:
    """Reads a file and all it includes into one text."""

    read: Any
    """Reads a file: path to text."""
    main: str
    _done: set[Path] = field(default_factory=set)

    def whole(self, path: Path, text: Text) -> Text:
        self._done.add(path.resolve())
        return self._with_parts(path, text, [path.resolve()])

    def _with_parts(self, path: Path, text: Text, way: list[Path]) -> Text:
        for number, name in enumerate(self._names(text)):
            place: Place = (INCLUDE, number) if (INCLUDE, number) in text.lines else (INCLUDE,)
            part = path.parent / name
            real = part.resolve()
            if real in way:
                circle = " → ".join(each.name for each in [*way[way.index(real) :], real])
                text.problem(
                    "include-cycle", f"{name} includes itself: {circle}", place, "remove one of them"
                )
                continue
            if real in self._done:
                continue  # two parts may need the same third
            self._done.add(real)
            try:
                content = self.read(part)
            except PipelineError as error:
                for each in error.problems:
                    text.problem(each.code, f"{part}: {each.message}", place, each.hint)
                continue
            if part.suffix == ".py":
                text.problem(
                    "bad-value", f"{name} is Python, which cannot be included", place, "write it in YAML"
                )
                continue
            try:
                found = text_of(content, str(part), self.main)
            except PipelineError as error:
                text.problems += error.problems
                continue
            _unite(text, self._with_parts(part, found, [*way, real]))
        text.value.pop(INCLUDE, None)
        return text

    @staticmethod
    def _names(text: Text) -> Iterator[str]:
        names = text.value.get(INCLUDE)
        several = names if isinstance(names, list) else [] if names is None else [names]
        for number, name in enumerate(several):
            if isinstance(name, str) and name:
                yield name
            else:
                text.problem(
                    "wrong-type", f'"{INCLUDE}" must name files', (INCLUDE, number), "write [a.yaml, b.yaml]"
                )


def _unite(text: Text, part: Text) -> None:
    """Add a part of the same pipeline; what both say is a conflict."""
    text.problems += part.problems
    text.repeated += part.repeated

    def unite(into: dict[str, Any], more: Mapping[str, Any], place: Place) -> None:
        for key, value in more.items():
            here = (*place, key)
            mine = into.get(key)
            deeper = not (place and place[0] in _UNITS)
            if key not in into:
                into[key] = value
                text.lines |= _below(part.lines, here)
            elif deeper and isinstance(mine, dict) and isinstance(value, Mapping):
                unite(mine, value, here)
            else:
                name = ".".join(map(str, here))
                text.problems.append(
                    Problem(
                        "include-conflict",
                        f'"{name}" is in two files of the pipeline; the other is {text.where(here)}',
                        "keep one of them; an --overlay or a profile may change what is there",
                        part.file,
                        part.lines.get(here, 0),
                    )
                )

    unite(text.value, {key: value for key, value in part.value.items() if key != INCLUDE}, ())


def _below(lines: Mapping[Place, int], place: Place) -> dict[Place, int]:
    return {each: line for each, line in lines.items() if each[: len(place)] == place}


# -- laying over


def lay_over(text: Text, over: Text, at: Place = ()) -> None:
    """Lay a text over another; `at` is where in `over` it begins (a profile)."""
    text.repeated += over.repeated
    source: Any = over.value
    for step in at:
        source = source[step]
    _lay(text, text.value, source, (), over, at)


def _lay(
    text: Text, into: dict[str, Any], more: Mapping[str, Any], place: Place, over: Text, at: Place
) -> None:
    for key, value in more.items():
        here = (*place, key)
        mine = into.get(key)
        field = len(here) > 2 and here[0] in SECTIONS
        if value is None and key in into and not (field and is_bare(over.lines.get((*at, *here), 0))):
            del into[key]
            _forget(text, here)
            continue
        if isinstance(mine, dict) and isinstance(value, Mapping) and not _is_exchanged(here, mine, value):
            _lay(text, mine, value, here, over, at)
            continue
        if isinstance(mine, dict) and isinstance(value, Mapping):
            kept = {name: mine[name] for name in _WIRING if name in mine and not value.keys() & {*_WIRING}}
            kept_lines = {
                each: line for name in kept for each, line in _below(text.lines, (*here, name)).items()
            }
            _forget(text, here)
            into[key] = {**kept, **deepcopy(dict(value))}  # another layer may change it, and may be the same
            text.lines |= kept_lines
        else:
            _forget(text, here)
            into[key] = deepcopy(value)
        for each, line in _below(over.lines, (*at, *here)).items():
            text.lines[each[len(at) :]] = line if isinstance(line, Line) else Line(line, over.file)


def _forget(text: Text, place: Place) -> None:
    for each in _below(text.lines, place):
        del text.lines[each]


def _is_exchanged(place: Place, mine: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    """Whether a node is given another type: fields of the one are none of the other."""
    return len(place) == 2 and place[0] in SECTIONS and "type" in value and value["type"] != mine.get("type")


def with_profiles(text: Text, wanted: Sequence[str], known: set[str]) -> Text:
    """The text with its profiles of these names laid over it. `known`: gets the names it has."""
    profiles = text.value.pop(PROFILES, None) or {}
    if not isinstance(profiles, dict) or not all(isinstance(each, dict | None) for each in profiles.values()):
        text.problem("wrong-type", f'"{PROFILES}" must be a mapping from names to parts of a pipeline',
                     (PROFILES,), "write NAME: and the fields below it, indented")  # fmt: skip
        return text
    known.update(profiles)
    allowed = [*text.value]
    for name, profile in profiles.items():
        for key in profile or {}:
            if key in (INCLUDE, PROFILES, "tests", "name"):
                text.problem("unknown-field", f'profile "{name}" may not have "{key}"', (PROFILES, name, key),
                             f"it may have: {', '.join(allowed)}")  # fmt: skip
    profiles_of = Text(text.file, {PROFILES: profiles}, _below(text.lines, (PROFILES,)))
    _forget(text, (PROFILES,))
    for name in dict.fromkeys(wanted):
        if profiles.get(name):
            lay_over(text, profiles_of, (PROFILES, name))
    return text


def unknown_profiles(wanted: Sequence[str], known: set[str], file: str) -> list[Problem]:
    return [
        Problem("unknown-profile", f'there is no profile "{name}"',
                suggestion(name, sorted(known), "there is") or "profiles: has none", file)
        for name in wanted
        if name not in known
    ]  # fmt: skip


# -- single values


def set_value(text: Text, assignment: str) -> None:
    """`path=value`: a value of a setting, or of a node that is there."""
    path, equals, written = assignment.partition("=")
    origin = Line(0, f"--set {path}")

    def refuse(message: str, hint: str) -> None:
        text.problems.append(Problem("bad-set", message, hint, line=origin))

    if not equals or not path:
        return refuse("it is not PATH=VALUE", "write --set sinks.table.retry.attempts=3")
    try:
        value = parse(written).value
    except BadYaml as error:
        return refuse(f"the value is not YAML: {error}", "put it in quotes")
    if _is_cut(written, value):
        return refuse("YAML takes only a part of this for the value", "put all of it in quotes: '\"…\"'")
    steps: list[str | int] = list(_steps(path))
    if steps[0] in (INCLUDE, PROFILES) or str(steps[0]).startswith("x-"):
        return refuse(f'"{steps[0]}" has been read before a single value is set', "use --overlay FILE")
    if len(steps) > _MOST_STEPS:
        return refuse(f"the path has {len(steps)} steps", f"there is nothing deeper than {_MOST_STEPS}")
    if steps[0] in SECTIONS:
        nodes = text.value.get(str(steps[0])) or {}
        if len(steps) < 3:
            return refuse("it names no field of a node", f"write --set {steps[0]}.NAME.FIELD=VALUE")
        if not isinstance(nodes, dict) or steps[1] not in nodes:
            kind = str(steps[0]).removesuffix("s")
            return refuse(f'there is no {kind} "{steps[1]}"', suggestion(str(steps[1]), nodes, "there is"))
    into: Any = text.value
    for number, step in enumerate(steps[:-1]):
        if isinstance(into, list):
            found = _index(step, into)
            if found is None:
                return refuse(f"the list has {len(into)} elements", "they are numbered from 0")
            steps[number] = step = found
        elif not isinstance(into, dict):
            return refuse(f'"{".".join(map(str, steps[:number]))}" is a single value', "it has no fields")
        elif step not in into or into[step] is None:
            into[step] = {}  # what may be below it is known by its model, which is asked afterwards
        into = into[step]
    last = steps[-1]
    if isinstance(into, list):
        found = _index(last, into)
        if found is None:
            return refuse(f"the list has {len(into)} elements", "they are numbered from 0")
        steps[-1] = last = found
    elif not isinstance(into, dict):
        return refuse(f'"{".".join(map(str, steps[:-1]))}" is a single value', "it has no fields")
    _forget(text, tuple(steps))
    into[last] = value
    for depth in range(1, len(steps) + 1):
        text.lines.setdefault(tuple(steps[:depth]), origin)
    return None


def _is_cut(written: str, value: Any) -> bool:
    """Whether YAML took a part of what was meant to be a text for a comment or an anchor: `#hunter2`."""
    written = written.strip()
    if value is None:
        return written not in ("", "~", "null", "Null", "NULL")
    return isinstance(value, str) and written[:1] not in ("'", '"', "!", "|", ">") and value != written


def _index(step: str | int, elements: list[Any]) -> int | None:
    if re.fullmatch("[0-9]{1,9}", str(step)) and int(step) < len(elements):
        return int(step)
    return None


def _steps(path: str) -> Iterator[str]:
    """The keys of a path. What stands behind `spark.config` is one, with dots in it."""
    head = "spark.config."
    if path.startswith(head):
        yield from ("spark", "config", path.removeprefix(head))
    else:
        yield from path.split(".")
