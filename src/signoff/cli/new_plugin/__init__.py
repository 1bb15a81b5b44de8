"""`signoff new --plugin KIND NAME`: a package with a type of its own, which passes its tests as it is.

The files stand beside this module as they are written, but for four words in them: `acme` (the type), `Acme`
(the beginning of its classes), `signoff_acme` (the module) and `signoff-acme` (the package).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

_TEMPLATE = ".tmpl"
_HIDDEN = {"gitignore": ".gitignore"}
"""Files that a wheel would leave out under their own name."""


def type_name(directory: Path) -> str:
    """The type's name, from that of the directory: `signoff-acme` and `Acme` are both `acme`."""
    given = directory.resolve().name
    if not re.fullmatch(r"[A-Za-z0-9 ._-]+", given):
        return ""  # what would be left of it is another name
    name = re.sub(r"[^a-z0-9]+", "_", given.lower()).strip("_")
    name = name.removeprefix("signoff_")
    return name if re.match(r"[a-z]", name) else ""


def write(kind: str, name: str, directory: Path) -> None:
    """Write the package. `directory` must not hold anything that is to stay."""
    for path, text in _files(files(__package__).joinpath(kind), Path()):
        target = directory / _named(str(path), name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_named(text, name), encoding="utf-8")


def _files(folder: Traversable, path: Path) -> Iterator[tuple[Path, str]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _files(each, path / each.name)
        elif each.name.endswith(_TEMPLATE):
            name = each.name.removesuffix(_TEMPLATE)
            yield path / _HIDDEN.get(name, name), each.read_text(encoding="utf-8")


def _named(text: str, name: str) -> str:
    words = "".join(word.capitalize() for word in name.split("_"))
    text = text.replace("signoff-acme", f"signoff-{name.replace('_', '-')}")
    return text.replace("acme", name).replace("Acme", words)
