"""The registry of all node types: what may stand in `type`, by kind.

Those that come with Signoff, and those of other installed packages (see `installed_types`). `DEFAULT` is
built when it is first asked for, so that importing this module costs nothing. A program that brings types of
its own, without a package, makes its own `Catalog` from the parts of `DEFAULT`.
"""

from __future__ import annotations

from functools import cache

from signoff.pipeline.model import Catalog

__all__ = ["DEFAULT", "Catalog", "built_in", "default"]

DEFAULT: Catalog


@cache
def default() -> Catalog:
    """The types that come with Signoff, and those that other packages bring."""
    from signoff.installed_types import TypesWithPlugins

    own = built_in()
    return Catalog(
        sources=TypesWithPlugins("source", own.sources),
        transforms=TypesWithPlugins("transform", own.transforms),
        sinks=TypesWithPlugins("sink", own.sinks),
    )


@cache
def built_in() -> Catalog:
    """The types that come with Signoff."""
    from signoff import sinks, sources, transforms

    return Catalog(sources=sources.TYPES, transforms=transforms.TYPES, sinks=sinks.TYPES)


def __getattr__(name: str) -> Catalog:
    if name == "DEFAULT":
        return default()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
