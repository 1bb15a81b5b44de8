"""`signoff config FILE`: the pipeline as it is after includes, profile, overlays, for_each and --set."""

from __future__ import annotations

from typing import Any

from signoff.cli.reading import PipelineFile
from signoff.terminal import say


def command(file: PipelineFile) -> None:
    """Print the pipeline that is run, as one YAML file.

    References such as ${DB_PASSWORD} stay as they are written, other secrets are masked.
    """
    import os

    from signoff.catalog import default
    from signoff.pipeline.check import check
    from signoff.pipeline.load import draft_of
    from signoff.pipeline.masked_config import fields_shown
    from signoff.pipeline.overlays import chosen
    from signoff.pipeline.settings import Settings
    from signoff.pipeline.syntax import written
    from signoff.pipeline.validate import register_literals
    from signoff.pipeline.variables import Lenient

    draft, catalog = draft_of(file, chosen()), default()
    models = {node.name: catalog.of(node.kind).get(str(node.fields.get("type"))) for node in draft.nodes}
    for node in draft.nodes:
        if model := models[node.name]:
            register_literals(model, node.fields)
    content: dict[str, Any] = fields_shown(draft.settings, Settings)
    for node in draft.nodes:
        fields = node.config.model_dump(mode="json") if node.config else node.fields
        shown = fields_shown(fields, type(node.config) if node.config else models[node.name])
        content.setdefault(f"{node.kind}s", {})[node.name] = shown
    # Only now: values of variables are not in the text, and what happens to be the same is not to be masked.
    check(draft, catalog, Lenient(os.environ))
    say(written(content), nl=False)
