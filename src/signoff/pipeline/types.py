"""Node types by name, each loaded when it is first asked for.

A pipeline uses few of them, and a type may bring a web server or a database driver: loading all would be
most of the time in which a command or an intake starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeVar

from signoff.pipeline.model import NodeConfig

Config = TypeVar("Config", bound=NodeConfig)


class TypesByName(Mapping[str, type[Config]]):
    """What may stand in `type`. Names are known without loading anything; a type is loaded once.

    `places` says where each type is: `module:Class`.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)

    def __getitem__(self, name: str) -> type[Config]:
        module, _, config = self._places[name].partition(":")
        found: type[Config] = getattr(import_module(module), config)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
