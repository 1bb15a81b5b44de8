"""What the documentation site has besides docs/: README, ARCHITECTURE, CHANGELOG, and each file of the
repository that a page links to, as a page with its text.

The pages are written to be read in the repository, so their links lead to files of the repository. Here they
become links of the site; mkdocs then refuses (`strict`) what leads nowhere. A page of docs/ that mkdocs.yml
does not name is put under "More", so that no page is out of reach.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
NAMED = {"README.md": "index.md", "ARCHITECTURE.md": "architecture.md", "CHANGELOG.md": "changelog.md"}
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "bash", ".jsonl": "json", ".sql": "sql", ".csv": "text"}
PICTURES = {".png", ".svg"}
"""Kept as they are. Pictures lie in docs/, where mkdocs finds them by itself."""
_CODE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)\s*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_TAGGED = re.compile(r"^(?P<fence>```+|~~~+)(?P<language>[\w-]+)[ \t]+[^\n]*$", re.MULTILINE)
"""The first line of a block that tests know by a word behind its language: mkdocs takes it for no block."""
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the navigation: every decision, and what was left out."""
    config.nav = [_filled(entry) for entry in config.nav or []]
    named = set(_leaves(config.nav))
    pages = (page.relative_to(DOCS).as_posix() for page in sorted(DOCS.rglob("*.md")))
    if left_out := [page for page in pages if page not in named]:
        config.nav.append({"More": left_out})
    return config


def _filled(entry: Any) -> Any:
    if isinstance(entry, list):
        return [_filled(part) for part in entry]
    if isinstance(entry, dict):
        return {title: _filled(part) for title, part in entry.items()}
    if entry.endswith("/"):
        return [f"{entry}index.md", *(f"{entry}{page.name}" for page in sorted((DOCS / entry).glob("*.md")))]
    return entry


def _leaves(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from _leaves(part)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/, and whatever they link to."""
    waiting = [ROOT / name for name in NAMED] + sorted(DOCS.rglob("*.md"))
    seen = set()
    while waiting:
        place = waiting.pop()
        if place in seen or not place.exists() or place.suffix in PICTURES:
            continue
        seen.add(place)
        if files.get_file_from_path(_site_path(place)) is None:
            files.append(File.generated(config, _site_path(place), content=_text(place)))
        if place.suffix == ".md":
            waiting += [_target(place, found["path"]) for found in _links(place.read_text(encoding="utf-8"))]
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Turn links to files of the repository into links to pages of the site."""
    origin = _origin(page.file.src_uri)
    here = Path(page.file.src_uri).parent
    if origin is None:
        return markdown
    text = markdown
    for found in reversed(list(_links(markdown))):
        target = _target(origin, found["path"])
        if target.exists():
            text = (
                text[: found.start("path")]
                + os.path.relpath(_site_path(target), here)
                + text[found.end("path") :]
            )
    return _TAGGED.sub(r"\g<fence>\g<language>", text)


def _links(markdown: str) -> Iterator[re.Match[str]]:
    without_code = _CODE.sub(lambda code: " " * len(code[0]), markdown)
    yield from _LINK.finditer(without_code)


def _target(page: Path, link: str) -> Path:
    return Path(os.path.normpath(page.parent / link))


def _site_path(place: Path) -> str:
    """Where a file or folder of the repository is on the site."""
    path = place.relative_to(ROOT).as_posix()
    if path in NAMED:
        return NAMED[path]
    base = path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"
    if place.is_dir():
        return f"{base}/index.md"
    return base if place.suffix in {".md", *PICTURES} else f"{base}.md"


def _origin(site_path: str) -> Path | None:
    """The page of the repository that a page of the site was made from; None if it is a text in a frame."""
    for name, path in NAMED.items():
        if site_path == path:
            return ROOT / name
    place = (
        ROOT / site_path.removeprefix("repository/")
        if site_path.startswith("repository/")
        else DOCS / site_path
    )
    return place if place.is_file() else None


def _text(place: Path) -> str:
    if place.is_dir():
        pages = "\n".join(f"- [{_title(page)}]({page.name})" for page in sorted(place.glob("*.md")))
        return f"# {place.name.capitalize()}\n\n{pages}\n"
    text = place.read_text(encoding="utf-8")
    if place.suffix == ".md":
        return text
    name = place.relative_to(ROOT).as_posix()
    fence = "`" * 6
    head = "---\nsearch:\n  exclude: true\n---\n"
    return (
        f"{head}# {place.name}\n\n`{name}`\n\n{fence}{LANGUAGES.get(place.suffix, 'text')}\n{text}\n{fence}\n"
    )


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
