"""`signoff new --plugin KIND NAME` writes a package that passes its own tests, installed as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
from typer.testing import CliRunner

from signoff.cli import app
from tests.examples.packages import pip_install

KINDS = ("sink", "source", "transform")
SECONDS = 500


def written(directory: Path, kind: str, name: str) -> Path:
    done = CliRunner().invoke(app, ["new", "--plugin", kind, str(directory / name)])
    assert done.exit_code == 0, done.output
    return directory / name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["signoff-my-thing", "Thing", "my.thing_2"])
def test_the_names_in_a_package_are_made_of_its_own(kind: str, name: str, tmp_path: Path) -> None:
    package = written(tmp_path, kind, name)
    texts = {path.relative_to(package): path.read_text() for path in package.rglob("*") if path.is_file()}
    assert {"pyproject.toml", "README.md", ".gitignore"} <= set(map(str, texts))
    for path, text in texts.items():
        assert "acme" not in f"{path}{text}".lower()
        if path.suffix == ".py":
            compile(text, str(path), "exec")
    (module,) = (package / "src").iterdir()
    entry = re.search(r'^(\w+) = "(\w+)\.\w+:(\w+)"$', texts[Path("pyproject.toml")], re.MULTILINE)
    assert entry is not None and entry[2] == module.name
    assert f'Literal["{entry[1]}"]' in texts[Path("src", module.name, f"{kind}.py")]
    assert f"class {entry[3]}(" in texts[Path("src", module.name, f"{kind}.py")]


@pytest.mark.parametrize("name", ["42", "über", "My Sink!", "files", "signoff-files"])
def test_a_directory_that_gives_no_name_of_its_own_is_refused_and_nothing_written(
    name: str, tmp_path: Path
) -> None:
    done = CliRunner().invoke(app, ["new", "--plugin", "sink", str(tmp_path / name)])
    assert done.exit_code == 2 and not (tmp_path / name).exists()


@pytest.mark.spark
@pytest.mark.crash
def test_packages_as_they_are_written_pass_the_conformance_suites(tmp_path: Path) -> None:
    packages = [written(tmp_path, kind, f"signoff-my-{kind}") for kind in KINDS]
    site = tmp_path / "site"
    pip_install(site, packages)
    found = {each.metadata["Name"]: each for each in distributions(path=[str(site)])}
    assert set(found) == {f"signoff-my-{kind}" for kind in KINDS}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-ra",
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *(str(package / "tests") for package in packages)],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    asked = re.search(r"(\d+) passed, (\d+) skipped", done.stdout)
    assert asked is not None and int(asked[1]) >= 45, done.stdout
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert len(skipped) == 1 and "each row is visible when it is written" in skipped[0], done.stdout
