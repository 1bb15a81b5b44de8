"""`signoff config FILE`: the pipeline as it is after includes, profile, overlays, for_each and --set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import typer
import yaml

from signoff.cli.reading import PipelineFile
from signoff.pipeline.secrets import redact

_REFERENCE = re.compile(r"\$\{[^}]*\}")
_STANDS_FOR_ONE = "\x91"
"""A character for private use, which no pipeline holds."""


def command(file: PipelineFile) -> None:
    """Print the pipeline that is run, as one YAML file.

    References such as ${DB_PASSWORD} stay as they are written, other secrets are masked.
    """
    from signoff.catalog import default
    from signoff.pipeline.check import check
    from signoff.pipeline.layers import chosen
    from signoff.pipeline.load import Lenient, draft_of

    draft = draft_of(file, chosen())
    check(draft, default(), Lenient())  # raises what is wrong, and learns which texts are secrets
    content: dict[str, Any] = dict(draft.settings)
    for node in draft.nodes:
        section = content.setdefault(f"{node.kind}s", {})
        section[node.name] = node.config.model_dump(mode="json") if node.config else node.fields
    typer.echo(yaml.safe_dump(_plain(content), sort_keys=False, allow_unicode=True, width=100), nl=False)


def _plain(value: Any) -> Any:
    """What YAML can write, without secrets; a function of a Python pipeline is shown by its name."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, str):
        return _masked(value)
    if value is None or isinstance(value, int | float):
        return value
    return getattr(value, "__qualname__", str(value))


def _masked(text: str) -> str:
    """The text without secrets. Where one comes from may be shown: a reference is none."""
    references = _REFERENCE.findall(text)
    masked = redact(_REFERENCE.sub(_STANDS_FOR_ONE, text))
    for reference in references:
        masked = masked.replace(_STANDS_FOR_ONE, reference, 1)
    return masked
