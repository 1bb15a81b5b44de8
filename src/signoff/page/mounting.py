"""What the pages need of whoever serves them: which pipelines there are, and who may do what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request

from signoff.page.watched import WatchedPipeline


@dataclass(frozen=True)
class Visitor:
    """Who looks."""

    name: str
    """Shown at the top of each page; '' where nobody has logged in."""
    may_operate: bool
    """Whether they may replay, correct and drop dead letters."""
    csrf: str
    """Comes with every form; unknown to other sites."""
    may_log_out: bool = False
    """Whether there is a page `logout` below the prefix that takes a form."""


class Mounting(Protocol):
    """Asked at each request, by several threads. The pages stand below the prefix that they are mounted
    at."""

    def visitor(self, request: Request) -> Visitor: ...

    def pipelines(self, request: Request) -> Sequence[WatchedPipeline]:
        """Those that the visitor may see, in the order in which they are listed."""
        ...

    def pipeline(self, request: Request, name: str) -> WatchedPipeline | None:
        """One of them; None if there is none, or not for this visitor."""
        ...

    def note(self, request: Request, visitor: Visitor, name: str) -> None:
        """Before a form that changes this pipeline is answered: it is of this visitor, who may do that. If
        this raises, nothing is done."""
        ...
