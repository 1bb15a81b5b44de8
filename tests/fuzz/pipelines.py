"""Pipeline files, whatever their bytes: a graph, or problems with file and code."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import yaml

from signoff.catalog import default
from signoff.errors import PipelineError
from signoff.pipeline.check import check
from signoff.pipeline.load import draft_of_yaml, load
from signoff.pipeline.model import KINDS
from tests.fuzz.targets import ODD, mutated, target

CATALOG = default()
EXAMPLES = [path.read_bytes() for path in sorted(Path(__file__).parents[2].glob("examples/*/*.yaml"))]
FOLDER = Path(tempfile.gettempdir())
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 0.5, float("1e300"), "", " ", "a",
    "a b", "${A}", "${", "${file:x}", "*", "/", "..", "~", "\n", "é", "x" * 5000, "10s", "-1s", "1e9h",
    [], {}, [None], {"a": None}, ["a", 1], {"a": {"b": []}}, "a.b", "a = 1", "BIGINT", "http://",
    "http://[", "amqp://:/", "1" * 30,
)  # fmt: skip


def must_be_answered(text: str) -> None:
    try:
        check(draft_of_yaml(text, "p.yaml", FOLDER), CATALOG, {})
    except PipelineError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.code and problem.message and problem.file
            str(problem).encode()


def _with_odd_values(generator: random.Random, data: bytes) -> bytes:
    """The file with some of its values replaced by what may stand there for YAML, and for nobody else."""
    rows = data.split(b"\n")
    for _ in range(generator.randint(0, 3)):
        place = generator.randrange(len(rows))
        key, colon, _ = rows[place].partition(b": ")
        if colon:
            rows[place] = (
                key + colon + generator.choice(ODD) + generator.choice((b"", b" abc", b"1", b" [x]"))
            )
    return b"\n".join(rows)


@target("pipeline-bytes", weight=10)
def pipeline_bytes(generator: random.Random) -> None:
    """Files as somebody, or a bad disk, may have left them."""
    data = _with_odd_values(generator, generator.choice(EXAMPLES))
    if generator.random() < 0.5:
        data = mutated(generator, data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    must_be_answered(text)


@target("pipeline-fields", weight=5)
def pipeline_fields(generator: random.Random) -> None:
    """Every field of every type, with values of every type."""
    sections: dict[str, Any] = {"name": "t"}
    for kind in KINDS:
        types = CATALOG.of(kind)
        name = generator.choice(list(types))
        fields = {"type": name, "path": "./x", "input": "s" if kind == "transform" else "t"}
        known = [field.alias or key for key, field in types[name].model_fields.items()]
        for _ in range(generator.randint(0, 3)):
            fields[generator.choice(known)] = generator.choice(ODD_VALUES)
        sections[f"{kind}s"] = {kind[0]: fields}
    if generator.random() < 0.3:
        sections[generator.choice(["state", "spark", "name", "acknowledgements", "x", "sinks"])] = (
            generator.choice(ODD_VALUES)
        )
    must_be_answered(yaml.dump(sections, allow_unicode=True))


@target("pipeline-files", weight=10)
def pipeline_files(generator: random.Random) -> None:
    """Through the file, with bytes that are no text."""
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(mutated(generator, generator.choice(EXAMPLES), most=3))
        file.flush()
        try:
            load(file.name, CATALOG, {})
        except PipelineError as error:
            assert error.problems
