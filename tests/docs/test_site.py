"""The documentation site is whole. It is built where mkdocs-material is installed, by `make docs-site`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^(```+).*?^\1$", re.MULTILINE | re.DOTALL)
_LOADED = re.compile(
    r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+rel="?(?:stylesheet|preconnect)[^>]+href="(?:https?:)?//'
)


def test_every_page_that_the_navigation_names_is_there() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    made = {"index.md": "README.md", "architecture.md": "ARCHITECTURE.md", "changelog.md": "CHANGELOG.md"}
    pages = re.findall(r": ([\w./-]+\.md)$", navigation, re.MULTILINE)
    assert len(pages) > 15
    places = [ROOT / made.get(page, f"docs/{page}".replace("docs/repository/", "")) for page in pages]
    assert [str(place) for place in places if not place.is_file()] == []


@pytest.mark.skipif(find_spec("material") is None, reason="mkdocs-material is not installed")
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert {"index.html", "architecture.html", "promises.html"} <= {page.name for page in pages}
    assert [str(page) for page in pages if _LOADED.search(page.read_text(encoding="utf-8"))] == []
    for text in sorted((ROOT / "docs").glob("*.md")):
        page = (tmp_path / "site" / f"{text.stem}.html").read_text(encoding="utf-8")
        headings = re.findall("^## ", _BLOCK.sub("", text.read_text(encoding="utf-8")), re.MULTILINE)
        assert page.count("<h2 id=") == len(headings), f"{text.name}: a heading is in a block of code"
