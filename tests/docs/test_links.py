"""Links of the documentation lead somewhere: to a file of the repository, and to a heading of it.

`make docs-site` checks the same once more on the site. Here it costs nothing, and needs no mkdocs.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    page.relative_to(ROOT).as_posix()
    for page in [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), ROOT / "examples/README.md"]
]
_FENCE = re.compile(r"^(```+|~~~+).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?![a-z]+:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]*))?\)")
_NAMED = re.compile(
    r"`((?:tests|src|docs|bench|examples|scripts|[a-z_]+)/[\w/.-]+\.(?:py|md)|examples/[\w/.-]+\.yaml)`"
)
_HOMES = (ROOT, ROOT / "src" / "signoff")


@cache
def text(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that GitHub, and the site, make of the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", text(page), re.MULTILINE):
        words = re.sub(r"\]\([^)]*\)|[^\w\- ]", "", heading.lower())
        anchor = base = words.replace(" ", "-")
        number = 0
        while anchor in found:
            number += 1
            anchor = f"{base}-{number}"
        found.add(anchor)
    return found


def broken(page: Path) -> list[str]:
    wrong = []
    for link in _LINK.finditer(re.sub(r"`[^`\n]*`", "", text(page))):
        target = (page.parent / link["path"]).resolve() if link["path"] else page
        if not target.exists() or (link["anchor"] and link["anchor"] not in anchors(target)):
            wrong.append(link[0])
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_the_documentation_leads_to_a_file_and_a_heading(page: str) -> None:
    assert broken(ROOT / page) == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != "CHANGELOG.md" and "decisions" not in page]
)
def test_every_file_that_the_documentation_names_exists(page: str) -> None:
    named = _NAMED.findall(text(ROOT / page))
    assert [name for name in named if not any((home / name).exists() for home in _HOMES)] == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n\n## One, two\n\n```\n## not a heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#one-two) [c](https://example.org) `[d](gone.md)`\n"
        "[e](gone.md) [f](other.md#not-a-heading) [g](#nothing)\n"
    )
    assert broken(page) == ["](gone.md)", "](other.md#not-a-heading)", "](#nothing)"]
