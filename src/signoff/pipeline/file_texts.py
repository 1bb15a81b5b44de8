"""The texts a pipeline is loaded from: of its file, of what that includes, and of overlays.

Invariant: a run has one pipeline. Its engine loads the pipeline in a process of its own, again after a crash,
perhaps days later; it gets the texts that the run read when it was started, so that a file that was edited,
replaced or removed meanwhile changes nothing before the next run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from signoff.errors import PipelineError, Problem
from signoff.pipeline.suggestions import did_you_mean

MOST_BYTES = 1024**2
"""Of a pipeline file; ten thousand times a usual one."""


class Texts:
    """Reads files, and remembers what stood in them."""

    def __init__(self, kept: Mapping[str, str] | None = None) -> None:
        """`kept`: what stood in files when somebody else read them; they are not read again."""
        self._kept = kept or {}
        self.read: dict[str, str] = {}
        """By absolute path."""

    def text(self, path: Path) -> str:
        """Raises PipelineError if it cannot be read."""
        place = str(path.absolute())
        if place not in self.read:
            self.read[place] = self._kept[place] if place in self._kept else _from_disk(path)
        return self.read[place]


def changed_since(texts: Mapping[str, str]) -> list[str]:
    """The files that hold another text now, or none."""
    return [place for place, text in texts.items() if not _holds(Path(place), text)]


def _holds(path: Path, text: str) -> bool:
    try:
        return _from_disk(path) == text
    except PipelineError:
        return False


def _from_disk(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)  # not all of it: it may be /dev/zero
        if len(content) > MOST_BYTES:
            message = f"the file is larger than {MOST_BYTES // 1024} KiB, which no pipeline is"
            raise failed("bad-yaml", message, "is it the right file?", path)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise failed("bad-yaml", "the file is not UTF-8 text", "save it as UTF-8", path, line) from None
    except FileNotFoundError:
        there = [each.name for each in path.parent.glob("*.*")] if path.parent.is_dir() else []
        close = did_you_mean(path.name, [name for name in there if name.endswith((".yaml", ".yml", ".py"))])
        hint = f'did you mean "{close}"?' if close else "signoff new DIR writes a starter project"
        raise failed("no-file", "no such file", hint, path) from None
    except OSError as error:
        raise failed("no-file", f"the file cannot be read: {error.strerror}", "", path) from None
    except ValueError:  # a path with a NUL
        raise failed("no-file", "no file can be called that", "", path) from None


def failed(code: str, message: str, hint: str, path: Path, line: int = 0) -> PipelineError:
    """One problem with one file."""
    return PipelineError([Problem(code, message, hint, str(path), line)])
