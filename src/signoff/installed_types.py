"""Node types that other installed packages bring, found by their entry points.

A package names them in its `pyproject.toml`; the name is what stands in `type`:

    [project.entry-points."signoff.sinks"]        # or signoff.sources, signoff.transforms
    kafka = "acme_signoff.kafka:KafkaSinkConfig"

Invariants: names are known without importing anything; a package is imported when a type of it is used. What
cannot be used is a PluginError that names the package, and concerns only those who use that type. No package
takes the place of a built-in type or of another package's: a name that two claim is nobody's.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import invalidate_caches
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from pathlib import Path
from typing import Any, TypeVar, get_args

from signoff.errors import PluginError, SignoffError
from signoff.pipeline.model import Kind, NodeConfig, SinkConfig, SourceConfig
from signoff.pipeline.secrets import excerpt, redact

GROUPS: Mapping[Kind, str] = {
    "source": "signoff.sources",
    "transform": "signoff.transforms",
    "sink": "signoff.sinks",
}
TYPE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")

_LONGEST = 300

logger = logging.getLogger(__name__)

Config = TypeVar("Config", bound=NodeConfig)


@dataclass(frozen=True)
class Plugin:
    """A type of another package, not loaded yet."""

    kind: Kind
    name: str
    place: str
    """`module:Class`."""
    package: str
    """Name and version of the distribution."""

    def load(self) -> type[NodeConfig]:
        """Its config class. Raises PluginError."""
        if not TYPE_NAME.fullmatch(self.name):
            raise self.broken("its name must be letters, digits, `_`, `.` and `-`, a letter first")
        entry = EntryPoint(self.name, self.place, GROUPS[self.kind])
        try:
            found = entry.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self.broken(_said(error)) from error
        if problem := _unfit(self.kind, self.name, found):
            raise self.broken(problem)
        model: type[NodeConfig] = found
        return model

    def broken(self, why: str) -> PluginError:
        """The error that names the package."""
        reason = excerpt(" ".join(redact(why).split()), _LONGEST)
        message = (
            f'the {self.kind} type "{self.name}" of package {self.package} ({self.place}) '
            f"cannot be used: {reason}"
        )
        hint = f"repair or uninstall the package {self.package.partition(' ')[0]}"
        return PluginError("broken-plugin", message, hint)


class TypesWithPlugins(Mapping[str, type[Config]]):
    """The types of one kind: built-in ones first, then those of other packages."""

    def __init__(self, kind: Kind, own: Mapping[str, type[Config]]) -> None:
        self._kind, self._own = kind, own

    def __getitem__(self, name: str) -> type[Config]:
        claims = installed(self._kind).get(name, ())
        if len(claims) + (name in self._own) > 1:
            raise _contested(self._kind, name, name in self._own, claims)
        if name in self._own:
            return self._own[name]
        if not claims:
            raise KeyError(name)
        return _loaded(claims[0])  # type: ignore[return-value]

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in installed(self._kind)

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from (name for name in installed(self._kind) if name not in self._own)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def installed(kind: Kind) -> Mapping[str, tuple[Plugin, ...]]:
    """The types that packages of this environment bring, by name; nothing is imported."""
    return _installed().get(kind, {})


@cache
def _installed() -> dict[Kind, dict[str, tuple[Plugin, ...]]]:
    every = _entry_points()
    found: dict[Kind, dict[str, tuple[Plugin, ...]]] = {}
    for kind, group in GROUPS.items():
        names = found.setdefault(kind, {})
        for entry in sorted(every[group], key=lambda each: each.name):
            plugin = Plugin(kind, entry.name, entry.value, _package(entry))
            claims = {*names.get(entry.name, ()), plugin}
            names[entry.name] = tuple(sorted(claims, key=lambda each: each.package))
    return found


def _entry_points() -> dict[str, list[EntryPoint]]:
    """Those of all packages, by group. One whose list is damaged, whatever it is for, has none: that is said,
    and concerns nobody else."""
    try:
        every = entry_points()
        return {group: list(every.select(group=group)) for group in GROUPS.values()}
    except Exception:  # noqa: BLE001 - a damaged file may fail in any way; which one it is, is looked for
        found: list[EntryPoint] = []
        seen: set[str | None] = set()
        for package in distributions():
            name = _named(package)
            if name in seen and name is not None:
                continue  # as Python does: the first on the path is the one that is imported
            seen.add(name)
            try:
                found += package.entry_points
            except Exception as error:  # noqa: BLE001 - the same
                logger.warning("the entry points of %s cannot be read: %s", _place(package), _said(error))
        return {group: [entry for entry in found if entry.group == group] for group in GROUPS.values()}


def _place(package: Distribution) -> str:
    """A package whose metadata may be damaged as well."""
    return str(package.locate_file("")) if (name := _named(package)) is None else name


def _named(package: Distribution) -> str | None:
    try:
        return package.metadata["Name"]
    except Exception:  # noqa: BLE001 - it may be damaged in any way
        return None


def _said(error: BaseException) -> str:
    """What an error says of itself, if it can."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - of a package: its text may fail as well
        return type(error).__name__


@cache
def _loaded(plugin: Plugin) -> type[NodeConfig]:
    return plugin.load()


def build(config: NodeConfig, base: Path) -> Any:
    """The source or sink of a config. What a package raises there by surprise is a PluginError."""
    try:
        return config.build(base)  # type: ignore[attr-defined]
    except SignoffError:
        raise
    except Exception as error:
        if (fault := fault_of(config, "build", error)) is None:
            raise
        raise fault from error


def fault_of(config: NodeConfig, method: str, error: Exception) -> PluginError | None:
    """What is said when a method of a type raises what it may not; None for a type of ours."""
    kind: Kind = "source" if isinstance(config, SourceConfig) else "sink"
    claims = installed(kind).get(config.type, ())
    if len(claims) != 1:
        return None
    return claims[0].broken(f"{method} raised {_said(error)}")


def forget() -> None:
    """Look again for installed packages: for tests, and for a program that installs one while it runs."""
    invalidate_caches()
    _installed.cache_clear()
    _loaded.cache_clear()


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "(unknown)"


def _contested(kind: Kind, name: str, built_in: bool, claims: tuple[Plugin, ...]) -> PluginError:
    packages = [f"package {plugin.package}" for plugin in claims]
    brought = " and ".join([*(["Signoff itself"] if built_in else []), *packages])
    message = f'the {kind} type "{name}" is brought by {brought}, so it is not clear which one is meant'
    return PluginError("ambiguous-type", message, "uninstall a package, or have its type renamed")


def _unfit(kind: Kind, name: str, found: Any) -> str:
    """Why this is no type of the kind; '' if it is one."""
    base = _base(kind)
    if not isinstance(found, type) or not issubclass(found, base):
        return f"it is {_shown(found)}, not a subclass of signoff.plugin.{_PUBLIC[kind]}"
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        return f"its class lacks {', '.join(missing)}"
    if kind != "transform" and not callable(getattr(found, "build", None)):
        return "its class lacks build"
    allowed = get_args(found.model_fields["type"].annotation)
    if allowed and name not in allowed:
        return f"its field type is {' or '.join(map(repr, allowed))}, not {name!r} as the entry point says"
    return ""


_PUBLIC: Mapping[Kind, str] = {
    "source": "SourceConfig",
    "transform": "RowTransform or ColumnTransform",
    "sink": "SinkConfig",
}


def _base(kind: Kind) -> type[NodeConfig]:
    if kind == "transform":
        from signoff.transforms.contract import Transform

        return Transform
    return SourceConfig if kind == "source" else SinkConfig


def _shown(found: Any) -> str:
    if isinstance(found, type):
        return f"the class {found.__qualname__}"
    return f"a {type(found).__name__}"
