"""Every exception Signoff raises on purpose.

SignoffError
 ├─ PipelineError      the pipeline file or graph is wrong; carries every problem found, not the first
 ├─ StateError         the state directory cannot be used (locked by another run, other pipeline's, damaged)
 ├─ LogError           a log cannot be written or read
 │   ├─ LogFull        the log has reached its size limit; the source must be held back
 │   │   └─ LogNoSpace the disk, a quota or a file size limit leaves no room; nothing is lost
 │   └─ LogCorrupt     bytes that were durable once do not match their checksum
 ├─ SourceError        a source cannot be opened or read
 ├─ SinkError          a sink did not take what it was given
 │   ├─ TransientError trying again may help (a lost connection, 503, a locked database)
 │   └─ PermanentError trying again cannot help (a wrong type, 400, no such table)
 │       └─ Discarded  the rows of a batch were dropped, as the sink is configured to
 ├─ EngineError        Spark could not run the plan
 ├─ RequestError       what somebody has asked for, of a pipeline that is there, cannot be done as asked
 └─ PluginError        a type that another package brings cannot be used; names the package
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


class SignoffError(Exception):
    """The base of all errors a user may want to catch."""


class Line(int):
    """A line of a file that is not the pipeline file itself: of one that it includes, of an overlay. With 0,
    what is no file at all (`--set NAME`)."""

    file: str
    bare: bool

    def __new__(cls, number: int, file: str, bare: bool | None = None) -> Self:
        line = super().__new__(cls, number)
        line.file, line.bare = file, is_bare(number) if bare is None else bare
        return line

    def __reduce__(self) -> tuple[type[Line], tuple[int, str, bool]]:
        return Line, (int(self), self.file, self.bare)


class BareLine(int):
    """A line with a field and nothing behind it. YAML takes that for null, but nobody wrote it."""


def is_bare(line: int) -> bool:
    """Whether nothing is written behind the field of this line."""
    return isinstance(line, BareLine) or (isinstance(line, Line) and line.bare)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a pipeline: where, which kind, what, and what to do about it."""

    code: str
    """Stable, kebab-case kind of the problem, such as `unknown-field`."""
    message: str
    hint: str = ""
    file: str = ""
    line: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.line, Line):
            object.__setattr__(self, "file", self.line.file)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line} " if self.line else (f"{self.file} " if self.file else "")
        hint = f"; {self.hint}" if self.hint else ""
        return f"{place}[{self.code}] {self.message}{hint}"


class PipelineError(SignoffError):
    """The pipeline cannot run as it is written."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class StateError(SignoffError):
    """The state directory cannot be used by this run."""


class LogError(SignoffError):
    """A log cannot be written or read."""


class LogFull(LogError):
    """The log holds as many bytes as it may; there is room again once events are settled."""


class LogNoSpace(LogFull):
    """The disk has no room for events that are still in memory; writing them is tried again."""


class LogCorrupt(LogError):
    """Durable bytes of a log do not match their checksum."""


class SourceError(SignoffError):
    """A source cannot be opened or read."""


class SinkError(SignoffError):
    """A sink did not take what it was given."""


class TransientError(SinkError):
    """Trying again may help."""


class PermanentError(SinkError):
    """Trying again cannot help."""


class Discarded(PermanentError):
    """The rows of a batch are dropped: that is what the sink is configured to do with them."""


class EngineError(SignoffError):
    """Spark could not run the plan."""


class RequestError(SignoffError):
    """What somebody has asked for cannot be meant, or not be done as asked. `field`: the part of the request
    that says so; '' for all of it."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field

    def __reduce__(self) -> tuple[type[RequestError], tuple[str, str]]:
        return RequestError, (str(self), self.field)


class PluginError(SignoffError):
    """A type that another package brings cannot be used."""

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(f"[{code}] {message}; {hint}")
        self.code, self.message, self.hint = code, message, hint

    def __reduce__(self) -> tuple[type[PluginError], tuple[str, str, str]]:
        return PluginError, (self.code, self.message, self.hint)
