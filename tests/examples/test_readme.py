"""What the README shows is right: its pipelines load, and the files it names are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from signoff import load
from signoff.catalog import built_in

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(("language", "name"), [("yaml", "readme.yaml"), ("python", "readme.py")])
def test_the_pipelines_of_the_readme_load(language: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(block(language), encoding="utf-8")
    graph = load(file)
    assert set(graph.sources) == {"incoming"}
    assert "table" in graph.sinks


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "examples/README.md"])
def test_every_link_and_every_file_that_is_named_exists(page: str) -> None:
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    links = [path.parent / link for link in re.findall(r"\]\(([^)#:]+)\)", text)]
    named = [ROOT / name for name in re.findall(r"`((?:tests|src|docs|bench|examples)/[\w/.]+)`", text)]
    assert [str(place) for place in links + named if not place.exists()] == []


@pytest.mark.parametrize("kind", ["sources", "transforms", "sinks"])
def test_the_readme_lists_every_type(kind: str) -> None:
    (text,) = re.findall(rf"\b{kind.capitalize()}: (.*?)\.(?:\s|$)", README, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", text)) == set(getattr(built_in(), kind))


def test_the_readme_lists_every_extra_a_user_may_need() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    listed = set(re.findall(r'pip install "\.\[(\w+)\]"', README))
    assert listed == set(extras) - {"dev", "docs"}
