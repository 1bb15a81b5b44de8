"""A pipeline file to a checked graph. YAML is read; a `.py` file is run and its `Pipeline` taken.

Invariant: whatever is wrong with the file, `load` raises PipelineError with every problem it could
find, and nothing else.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from signoff.errors import Line, PipelineError, Problem
from signoff.pipeline.check import check
from signoff.pipeline.draft import Draft, DraftNode, WrittenInPython, loading
from signoff.pipeline.file_texts import Texts, failed
from signoff.pipeline.for_each import expand
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import KINDS, Catalog
from signoff.pipeline.overlays import (
    INCLUDE,
    PROFILES,
    Includes,
    Layers,
    Text,
    chosen,
    lay_over,
    set_value,
    text_of,
    unknown_profiles,
    with_profiles,
)
from signoff.pipeline.secrets import redact
from signoff.pipeline.settings import Settings
from signoff.pipeline.started_jobs import with_jobs
from signoff.pipeline.suggestions import suggestion
from signoff.pipeline.syntax import Place
from signoff.pipeline.variables import Alone, Lenient

SECTIONS = {f"{kind}s": kind for kind in KINDS}
TESTS, PIPELINE = "tests", "pipeline"


def load(
    path: Path | str,
    catalog: Catalog,
    environ: Mapping[str, str] = os.environ,
    *,
    require_secrets: bool = True,
    layers: Layers | None = None,
    texts: Mapping[str, str] | None = None,
) -> Graph:
    """The checked graph of a pipeline file; raises PipelineError with all problems.

    `require_secrets=False` is for looking at a pipeline, not for running it: a reference that cannot be
    resolved stands for itself, or where that will not do for something else.
    `layers`: what is laid over the file; by default what the command line says.
    `texts`: the texts of its files, from a graph that was loaded before (see `Texts`).
    """
    path, layers, files = Path(path), chosen() if layers is None else layers, Texts(texts)
    if not require_secrets:
        environ = Lenient(environ)
    graph = check(draft_of(path, layers, files), catalog, environ)
    graph = replace(graph, layers=layers, texts=files.read)

    def job(path: Path) -> Graph:
        kept = Texts(texts)
        return replace(check(draft_of(path, Layers(), kept), catalog, environ), texts=kept.read)

    return with_jobs(graph, job, lenient=not require_secrets)


def load_alone(text: str, path: Path, catalog: Catalog, environ: Mapping[str, str]) -> Graph:
    """The graph of one text, for a process that looks at pipelines of others: no file is read, and nothing
    that the text names is run. References that cannot be resolved so stand for themselves; a job that a sink
    starts is not looked at. Raises PipelineError with all problems."""
    written, layers = text_of(text, str(path)), Layers()
    refuse_other_files(written)
    laid = _layered(written, layers, Texts())
    draft = _Splitter(laid, Draft(str(path), path.parent.resolve())).split()
    graph = check(draft, catalog, Alone(environ))
    return replace(graph, layers=layers, texts={str(path.absolute()): text})


def refuse_other_files(written: Text) -> None:
    """Raises PipelineError for a text that needs another one."""
    for key in (INCLUDE, PIPELINE):
        if key in written.value:
            message, hint = f'"{key}" names another file, and only one text was submitted', "submit all of it"
            line = written.lines.get((key,), 0)
            raise PipelineError([Problem("not-hosted", message, f"{hint} as one text", written.file, line)])


def draft_of(path: Path, layers: Layers, files: Texts | None = None) -> Draft:
    """What a pipeline file says, with all that is laid over it. Raises PipelineError if it is no YAML."""
    files = files or Texts()
    if path.suffix == ".py":
        return _over_python(_python_draft(path, files), layers, files)
    text = _whole(path, str(path), files)
    if PIPELINE in text.value and not text.value.keys() & SECTIONS.keys():
        return _tests_of_another(path, text, layers, files)
    return _Splitter(_layered(text, layers, files), Draft(str(path), path.parent.resolve())).split()


def _whole(path: Path, main: str, files: Texts) -> Text:
    """A file with all it includes."""
    return Includes(files.text, main).whole(path, text_of(files.text(path), str(path), main))


def _layered(text: Text, layers: Layers, files: Texts) -> Text:
    """The text with its profile, overlays and single values; nodes with `for_each` are several."""
    known: set[str] = set()
    text = with_profiles(text, layers.profiles, known)
    for name in layers.overlays:
        over = with_profiles(_whole(Path(name), text.file, files), layers.profiles, known)
        text.problems += over.problems
        lay_over(text, over)
    text.problems += unknown_profiles(layers.profiles, known, text.file)
    expand(text)
    for assignment in layers.sets:
        set_value(text, assignment)
    return text


def _tests_of_another(path: Path, text: Text, layers: Layers, files: Texts) -> Draft:
    """A file of tests names the pipeline they are of: its draft, with these tests."""
    named = text.value.pop(PIPELINE)
    own = _Splitter(text, Draft(str(path), path.parent.resolve())).split()
    if not isinstance(named, str) or (path.parent / named).resolve() == path.resolve():
        message = f'the field "{PIPELINE}" must name the file of the pipeline that is tested'
        raise PipelineError([Problem("bad-value", message, "", str(path), text.lines.get((PIPELINE,), 0))])
    draft = draft_of(path.parent / named, layers, files)
    return replace(draft, tests=own.tests, problems=[*draft.problems, *own.problems])


def draft_of_yaml(text: str, file: str, base: Path) -> Draft:
    """What stands in a YAML text; raises PipelineError when it is not YAML."""
    return _Splitter(text_of(text, file), Draft(file, base)).split()


class _Splitter:
    """Takes a document apart into settings and nodes."""

    def __init__(self, document: Text, draft: Draft) -> None:
        self._document = document
        self._draft = draft
        draft.problems += document.problems
        self._of_node: dict[Place, dict[Place, int]] = {}
        """The lines of each node: to look through all of them for each node would take for ever."""
        for place, line in document.lines.items():
            self._of_node.setdefault(place[:2], {})[place] = line

    def split(self) -> Draft:
        draft, value = self._draft, self._document.value
        known = [*Settings.model_fields, *SECTIONS, TESTS, INCLUDE, PROFILES]
        for key in value:
            if key not in known and not key.startswith("x-"):
                hint = suggestion(key, known, "its fields are")
                self._problem("unknown-field", f'the pipeline has no field "{key}"', (key,), hint)
        draft.settings = {key: part for key, part in value.items() if key in Settings.model_fields}
        draft.settings_lines = self._lines_below(())
        for section in SECTIONS:
            self._section(section, value.get(section))
        self._tests(value.get(TESTS))
        self._repeated()
        return draft

    def _section(self, section: str, nodes: Any) -> None:
        if nodes is None:
            return
        if not isinstance(nodes, dict):
            message = f'the field "{section}" must be a mapping from names to nodes'
            self._problem("wrong-type", message, (section,), "write NAME: and its fields below it, indented")
            return
        kind = SECTIONS[section]
        for name, fields in nodes.items():
            place: Place = (section, name)
            if not isinstance(fields, dict):
                message = f'{kind} "{name}" must be a mapping of fields'
                self._problem("wrong-type", message, place, "write its fields below it, indented")
                continue
            line = self._document.lines.get(place, 0)
            node = DraftNode(kind, name, fields, line, self._lines_below(place), self._draft.file)
            self._draft.nodes.append(node)

    def _tests(self, tests: Any) -> None:
        if tests is None:
            return
        if not isinstance(tests, dict):
            message = f'the field "{TESTS}" must be a mapping from names to tests'
            self._problem("wrong-type", message, (TESTS,), "write NAME: and its fields below it, indented")
            return
        for name, fields in tests.items():
            place: Place = (TESTS, name)
            line = self._document.lines.get(place, 0)
            self._draft.tests[name] = DraftNode(
                "source", name, fields, line, self._lines_below(place), self._draft.file
            )

    def _repeated(self) -> None:
        for again in self._document.repeated:
            *above, key = again.place
            first = f"; the first is in line {again.first_line}"
            if len(above) == 1 and above[0] in SECTIONS:
                kind = SECTIONS[str(above[0])]
                text = f'{kind} "{key}" is there twice{first}'
                problem = Problem("duplicate-name", text, "rename one of them", self._draft.file, again.line)
            else:
                owner = "the pipeline"
                if len(above) > 1 and above[0] in SECTIONS:
                    owner = f'{SECTIONS[str(above[0])]} "{above[1]}"'
                field = ".".join(str(step) for step in again.place[len(above[:2]) if above else 0 :])
                text = f'{owner} has the field "{field}" twice{first}'
                problem = Problem("duplicate-field", text, "", self._draft.file, again.line)
            self._draft.problems.append(problem)

    def _lines_below(self, place: Place) -> dict[str, int]:
        depth = len(place)
        return {
            ".".join(str(step) for step in below[depth:]): line
            for below, line in (self._of_node.get(place, {}) if depth == 2 else self._document.lines).items()
            if len(below) > depth
        }

    def _problem(self, code: str, message: str, place: Place, hint: str = "") -> None:
        line = self._document.lines.get(place, 0)
        self._draft.problems.append(Problem(code, message, hint, self._draft.file, line))


def _python_draft(path: Path, files: Texts) -> Draft:
    module = _run(path, files.text(path))
    found = {id(value): value for value in vars(module).values() if isinstance(value, WrittenInPython)}
    if len(found) != 1:
        message = f"the file holds {len(found) or 'no'} Pipeline object{'s' if len(found) != 1 else ''}"
        raise failed("bad-python", message, "keep exactly one at its top level", path)
    (pipeline,) = found.values()
    return pipeline.draft(file=path)


def _over_python(draft: Draft, layers: Layers, files: Texts) -> Draft:
    """Overlays and single values change a pipeline of Python as they change one of YAML."""
    if layers == Layers():
        return draft
    by_section: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    lines: dict[Place, int] = {(name,): Line(line, draft.file) for name, line in draft.settings_lines.items()}
    for node in draft.nodes:
        place = (f"{node.kind}s", node.name)
        by_section[place[0]][node.name] = dict(node.fields)
        lines[place] = Line(node.line, node.file)
        lines |= {(*place, name): Line(line, node.file) for name, line in node.field_lines.items()}
    text = _layered(Text(draft.file, {**draft.settings, **by_section}, lines), layers, files)
    laid = _Splitter(text, Draft(draft.file, draft.base)).split()
    before = {node.name: node for node in draft.nodes}
    for number, node in enumerate(laid.nodes):
        old = before.get(node.name)
        if old is None or old.config is None:
            continue
        if node.fields == old.fields:
            laid.nodes[number] = old
        else:
            message = f"{node.label} is made of a config object, which cannot be changed from outside"
            laid.problems.append(node.problem("bad-set", message, hint="give its fields in Python"))
    return laid


def _run(path: Path, text: str) -> ModuleType:
    """Run the text of a file as a module of its own, named otherwise than `__main__`.

    It does not stay in `sys.modules`: functions of a module that executors cannot import must be
    pickled by value, and cloudpickle does that for modules it does not find there.
    """
    directory = str(path.parent.resolve())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    name = f"signoff_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    token = loading.set(True)
    try:
        exec(compile(text, str(path), "exec", dont_inherit=True), vars(module))
    except PipelineError:
        raise
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        frames = reversed(traceback.extract_tb(error.__traceback__))
        lines = (frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve())
        line = error.lineno if isinstance(error, SyntaxError) else next(lines, None)
        message = redact(f"{type(error).__name__}: {error}")
        raise failed("bad-python", message, "", path, line or 0) from error
    finally:
        loading.reset(token)
        sys.modules.pop(name, None)
    return module
