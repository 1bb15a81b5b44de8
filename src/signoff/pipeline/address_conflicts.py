"""Real addresses: a node that sends what it gets to its own pipeline's http source feeds itself without end.

Compared by what this machine knows of itself, without asking a name server: numeric addresses, `localhost`
and the machine's own name. `port: 0` is known to nobody before the run.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Mapping

from signoff.errors import Problem
from signoff.pipeline.draft import DraftNode
from signoff.pipeline.model import NodeConfig

Address = tuple[str, int]
_LOOPBACK = frozenset({"127.0.0.1", "::1"})


def problems_of(nodes: Mapping[str, DraftNode], configs: Mapping[str, NodeConfig]) -> Iterator[Problem]:
    """Which nodes send to a source of the same pipeline."""
    listening = {name: at for name, config in configs.items() if (at := config.listens_on())}
    for name, config in configs.items():
        to = config.connects_to() if listening else None
        for source, at in listening.items():
            if to is not None and reaches(to, at):
                node = nodes[name]
                message = f"{node.label} sends to {to[0]}:{to[1]}, where {nodes[source].label} listens"
                hint = (
                    "the pipeline would get its own output without end; give the address of another service"
                )
                yield node.problem("own-output", message, at="url", hint=hint)


def reaches(to: Address, listening: Address) -> bool:
    """Whether a connection to the one comes to the other."""
    if to[1] != listening[1] or not listening[1]:
        return False
    own, targets = _numbers(listening[0]), _numbers(to[0])
    if any(ipaddress.ip_address(each).is_unspecified for each in own):
        return any(map(_is_here, targets))
    return bool(own & targets)


def _numbers(host: str) -> frozenset[str]:
    """The numeric addresses a host stands for, as far as they are known without a name server."""
    host = host.strip("[]").rstrip(".").lower()
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        if host == "localhost" or host.endswith(".localhost"):
            return _LOOPBACK
        return _numbers_of_machine() if host == socket.gethostname().lower() else frozenset()
    mapped = getattr(number, "ipv4_mapped", None)
    if number.is_unspecified:  # to connect there is to connect to this machine
        return frozenset({str(number), *_LOOPBACK})
    return frozenset({str(mapped or number)})


def _numbers_of_machine() -> frozenset[str]:
    try:
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None))
    except OSError:
        return _LOOPBACK


def _is_here(number: str) -> bool:
    """Whether this machine has the address: then, and only then, a socket can be bound to it."""
    family = socket.AF_INET6 if ":" in number else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((number, 0))
    except OSError:
        return False
    return True
