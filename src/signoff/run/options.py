"""How a pipeline is run; loads nothing, so that a command can say so before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PageOptions:
    """How the page of a run is served."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: one that is free."""
    token: str | None = None
    """What one has to know to log in; needed on an address that other machines reach. None: nothing."""
    names: tuple[str, ...] = ()
    """Names under which it is reached, besides those that the machine gives itself."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        from ipaddress import ip_address

        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True)
class RunOptions:
    """How a pipeline is run."""

    once: bool = False
    """Take what is there, settle it, end."""
    drain_s: float = 30.0
    """How long what is in flight may take to finish after a request to stop."""
    patience_s: float | None = None
    """With `once`: how long a failing sink is waited for."""
    log_format: Literal["text", "json"] = "text"
    metrics: str | None = None
    """Where metrics are served for Prometheus: a port of this machine, or HOST:PORT."""
    page: PageOptions | None = None
    """How the page is served; None: it is not."""
