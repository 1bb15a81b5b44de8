"""Types of other packages: found without an import, loaded when used, and clear about what is wrong."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from signoff import installed_types
from signoff.catalog import built_in, default
from signoff.cli import app
from signoff.engine.delivery.open_sinks import build_sinks
from signoff.errors import PipelineError, PluginError
from signoff.intake import Instructions
from signoff.pipeline.load import load
from signoff.pipeline.model import SourceConfig

SINK = """
from typing import ClassVar, Literal
from signoff.pipeline.model import Config, SinkConfig

class Rule(Config):
    \"\"\"Has the name of a model that a built-in type uses.\"\"\"
    how: str = "twice"
    \"\"\"In words.\"\"\"

class AcmeSink(SinkConfig):
    summary: ClassVar[str] = "A place of Acme's."
    type: Literal["acme"] = "acme"
    place: str
    \"\"\"Where rows go.\"\"\"
    again: Rule = Rule()
    \"\"\"How to try again.\"\"\"
    def build(self, base):
        raise NotImplementedError
"""

PIPELINE = """\
name: t
sources: {incoming: {type: generate, template: sequence, count: 3}}
sinks:
  out:
    type: %s
    input: incoming
    place: here
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package into an environment, as pip would leave it there."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    before = set(sys.modules)

    def put(name: str, entries: str, **modules: str) -> None:
        info = site / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(entries)
        for module, text in modules.items():
            (site / f"{module}.py").write_text(text)
        installed_types.forget()

    yield put
    for module in set(sys.modules) - before:
        if getattr(sys.modules[module], "__file__", None) and str(site) in str(sys.modules[module].__file__):
            del sys.modules[module]
    monkeypatch.undo()
    installed_types.forget()


def problems(tmp_path: Path, type_name: str) -> list[str]:
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE % type_name)
    try:
        load(file, default())
    except PipelineError as error:
        return [str(problem).removeprefix(f"{file}:") for problem in error.problems]
    return []


def call(*command: str) -> str:
    done = CliRunner().invoke(app, list(command), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_type_of_another_package_is_used_like_a_built_in_one(install: Install, tmp_path: Path) -> None:
    install("acme-signoff", "[signoff.sinks]\nacme = acme_sink:AcmeSink\n", acme_sink=SINK)
    assert problems(tmp_path, "acme") == []
    assert problems(tmp_path, "acem")[0].endswith('has the unknown type "acem"; did you mean "acme"?')
    assert "A place of Acme's." in call("describe")
    assert "Where rows go." in call("describe", "acme")
    assert "sink `acme`" in call("describe", "--all", "--markdown")


def test_the_json_schema_keeps_apart_what_two_packages_call_the_same(install: Install) -> None:
    before = json.loads(call("describe", "--schema"))["$defs"]
    install("acme-signoff", "[signoff.sinks]\nacme = acme_sink:AcmeSink\n", acme_sink=SINK)
    after = json.loads(call("describe", "--schema"))["$defs"]
    assert {name: after[name] for name in before} == before
    again = after["sink_acme"]["properties"]["again"]
    assert "#/$defs/sink_acme_Rule" in json.dumps(again)
    assert "how" in after["sink_acme_Rule"]["properties"]


def test_nothing_of_a_package_is_imported_before_its_type_is_used(install: Install, tmp_path: Path) -> None:
    install("acme-signoff", "[signoff.sinks]\nacme = acme_sink:AcmeSink\n", acme_sink=SINK)
    assert "acme" in default().sinks
    load_only = tmp_path / "pipeline.yaml"
    load_only.write_text((PIPELINE % "console").replace("    place: here\n", ""))
    load(load_only, default())
    assert "acme_sink" not in sys.modules
    assert problems(tmp_path, "acme") == []
    assert "acme_sink" in sys.modules


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("import no_such_client", "ModuleNotFoundError: No module named 'no_such_client'"),
        ("def broken(:", "SyntaxError: invalid syntax"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("Other = 1", "AttributeError: module 'acme_sink' has no attribute 'AcmeSink'"),
        ("AcmeSink = 1", "it is a int, not a subclass of signoff.plugin.SinkConfig"),
        (
            "from signoff.pipeline.model import SourceConfig as AcmeSink",
            "it is the class SourceConfig, not a subclass of signoff.plugin.SinkConfig",
        ),
        (
            "from signoff.sinks.files.sink import FilesSinkConfig as AcmeSink",
            "its field type is 'files', not 'acme' as the entry point says",
        ),
        ("from signoff.pipeline.model import SinkConfig as AcmeSink", "its class lacks build"),
    ],
)
def test_a_broken_package_is_an_error_that_names_it(
    install: Install, tmp_path: Path, module: str, reason: str
) -> None:
    install("acme-signoff", "[signoff.sinks]\nacme = acme_sink:AcmeSink\n", acme_sink=module)
    (problem,) = problems(tmp_path, "acme")
    assert problem.startswith(
        '5 [broken-plugin] sink "out": the sink type "acme" of package acme-signoff 1.2 (acme_sink:AcmeSink) '
        f"cannot be used: {reason}"
    )
    assert problem.endswith("; repair or uninstall the package acme-signoff")


def test_a_broken_package_leaves_the_description_of_all_others(install: Install) -> None:
    install("acme-signoff", "[signoff.sinks]\nacme = acme_sink:AcmeSink\n", acme_sink="import no_such_client")
    done = CliRunner().invoke(app, ["describe"])
    assert done.exit_code == 0 and "  sqlite " in done.stdout and "acme" not in done.stdout
    assert "warning: left out: [broken-plugin]" in done.stderr and "acme-signoff 1.2" in done.stderr
    assert json.loads(CliRunner().invoke(app, ["describe", "--schema"]).stdout)


def test_a_package_cannot_take_the_place_of_a_built_in_type(install: Install, tmp_path: Path) -> None:
    text = SINK.replace('"acme"', '"console"')
    install("acme-signoff", "[signoff.sinks]\nconsole = acme_sink:AcmeSink\n", acme_sink=text)
    (problem,) = problems(tmp_path, "console")
    assert problem == (
        '5 [ambiguous-type] sink "out": the sink type "console" is brought by Signoff itself and package '
        "acme-signoff 1.2, so it is not clear which one is meant; uninstall a package, or have its type "
        "renamed"
    )
    assert "acme_sink" not in sys.modules


def test_a_name_that_two_packages_claim_is_nobodys(install: Install, tmp_path: Path) -> None:
    install("acme-signoff", "[signoff.sinks]\nacme = acme_sink:AcmeSink\n", acme_sink=SINK)
    install("other", "[signoff.sinks]\nacme = other_sink:AcmeSink\n", other_sink=SINK)
    (problem,) = problems(tmp_path, "acme")
    assert "brought by package acme-signoff 1.2 and package other 1.2" in problem


def test_a_validator_that_raises_by_surprise_is_the_fault_of_its_package(
    install: Install, tmp_path: Path
) -> None:
    broken = "    def model_post_init(self, context):\n        raise KeyError('no licence')\n"
    install("acme-signoff", "[signoff.sinks]\nacme = acme_sink:AcmeSink\n", acme_sink=SINK + broken)
    (problem,) = problems(tmp_path, "acme")
    assert problem == (
        '5 [broken-plugin] sink "out": the type "acme" of package acme_sink cannot be used: '
        "KeyError: 'no licence'; repair or uninstall the package acme_sink"
    )


def test_a_type_that_cannot_be_built_is_the_fault_of_its_package(install: Install, tmp_path: Path) -> None:
    install("acme-signoff", "[signoff.sinks]\nacme = acme_sink:AcmeSink\n", acme_sink=SINK)
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE % "acme")
    with pytest.raises(PluginError, match=r"package acme-signoff 1\.2 .* build raised NotImplementedError"):
        build_sinks(load(file, default()))


def test_the_public_base_knows_the_files_of_its_package(install: Install, tmp_path: Path) -> None:
    text = SINK.replace("signoff.pipeline.model import", "signoff.plugin import")
    install("acme-signoff", "[signoff.sinks]\nacme = acme_sink:AcmeSink\n", acme_sink=text)
    config = default().sinks["acme"](type="acme", place="there")  # type: ignore[call-arg]
    (file,) = config.code_files(tmp_path)
    assert file.name == "acme_sink.py"
    assert config.needed_files(tmp_path) == (file,)  # compared by every worker of a cluster


def test_a_secret_in_the_error_of_a_package_is_masked(install: Install, tmp_path: Path) -> None:
    text = "raise OSError('amqp://me:hunter2hunter2@host/ is not there')"
    install("acme-signoff", "[signoff.sinks]\nacme = acme_sink:AcmeSink\n", acme_sink=text)
    (problem,) = problems(tmp_path, "acme")
    assert "hunter2" not in problem


def test_the_intake_process_finds_the_source_of_a_package(install: Install, tmp_path: Path) -> None:
    text = SINK.replace("SinkConfig", "SourceConfig")
    install("acme-signoff", "[signoff.sources]\nacme = acme_source:AcmeSink\n", acme_source=text)
    config = default().sources["acme"](type="acme", place="there")  # type: ignore[call-arg]
    instructions = Instructions.decode(
        Instructions.of("incoming", config, state=tmp_path, base=tmp_path).encode()
    )
    assert instructions.source_config() == config
    assert pickle.loads(pickle.dumps(config)) == config


def test_the_intake_process_names_the_package_that_is_broken(install: Install, tmp_path: Path) -> None:
    install(
        "acme-signoff", "[signoff.sources]\nacme = acme_source:Acme\n", acme_source="import no_such_client"
    )
    instructions = Instructions.of("incoming", SourceConfig(type="acme"), state=tmp_path, base=tmp_path)
    with pytest.raises(PluginError, match=r"package acme-signoff 1\.2 .* No module named 'no_such_client'"):
        instructions.source_config()


def test_built_in_types_are_still_known_by_themselves(install: Install) -> None:
    install("acme-signoff", "[signoff.sinks]\nacme = acme_sink:AcmeSink\n", acme_sink=SINK)
    assert "acme" in default().sinks and "acme" not in built_in().sinks


@pytest.mark.parametrize("damage", [b"[signoff.sinks]\nacme\n", b"\xff\xfe\x00", b"[signoff.sinks"])
def test_a_package_with_damaged_entry_points_concerns_nobody_else(
    install: Install, tmp_path: Path, damage: bytes
) -> None:
    install("acme-signoff", "[signoff.sinks]\nacme = acme_sink:AcmeSink\n", acme_sink=SINK)
    broken = tmp_path / "site-packages" / "torn-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: torn\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_bytes(damage)
    installed_types.forget()
    assert "files" in default().sinks
    assert default().sinks["acme"].__name__ == "AcmeSink"


@pytest.mark.parametrize(
    "body",
    [
        "class Odd(BaseException): pass\nraise Odd('no')",
        "class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd()",
    ],
)
def test_whatever_an_import_raises_is_an_error_of_its_package(install: Install, body: str) -> None:
    install("acme-odd", "[signoff.sinks]\nacme = acme_odd:AcmeSink\n", acme_odd=body)
    with pytest.raises(PluginError, match="Odd"):
        default().sinks["acme"]
