"""What every type must say of itself, whatever its kind."""

from __future__ import annotations

from signoff.pipeline.describe import describe_text, schema_of
from signoff.pipeline.model import Kind, NodeConfig


def describes_itself(config: type[NodeConfig], kind: Kind) -> None:
    """It has a name, a sentence, and a text for every field that a user may write."""
    name = config.model_fields["type"].default
    assert isinstance(name, str), 'give the field "type" its name: type: Literal["acme"] = "acme"'
    assert config.summary.endswith("."), "summary: one sentence that says what it is"
    of_all = ("type", "log", "retry")
    fields = {name: info for name, info in config.model_fields.items() if name not in of_all}
    undocumented = [field for field, info in fields.items() if not info.description]
    assert undocumented == [], "a docstring below each field says what it is for"
    assert config.summary in describe_text(name, kind, config)
    assert schema_of(config)["properties"]
