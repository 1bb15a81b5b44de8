"""What a package needs to bring a source, a sink or a transform of its own. Nothing else is promised to stay.

    # pyproject.toml of the package: the name is what stands in `type`
    [project.entry-points."signoff.sinks"]        # or signoff.sources, signoff.transforms
    acme = "acme_signoff:AcmeSinkConfig"

A type is its config: a pydantic model with a `type`, a `summary` and one documented field for each thing a
user may say. From it come validation, `signoff describe`, the JSON Schema; and, with `build` or `compile`,
what works.

    SourceConfig      build() -> Source               Source: open, receive, logged, settle, close
    SinkConfig        build() -> Sink                 Sink: prepare, open -> Writer: write, close; commit
    ColumnTransform   columns() -> Spark columns      columns in, columns out, inside Spark
    RowTransform      row(dict) -> dict               a Python function for each row

Who is where: `build`, `prepare`, `commit`, `columns` run on the driver, a `Writer` and `row` on executors, a
`Source` in its intake process. Each contract says how often it is called and what may be repeated.

What is raised: `TransientError` where trying again may help, `PermanentError` where it cannot, `SourceError`
by a source that cannot be opened or read; `FieldError` by a transform, about one of its fields. Anything else
that is raised is a fault of the package, and said to be.

`signoff new --plugin sink NAME` writes such a package; `signoff.testing` has the tests that ours pass as
well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, SecretStr

from signoff.durable import make_directory, sync_directory, write_whole
from signoff.errors import PermanentError, PluginError, SinkError, SourceError, TransientError
from signoff.json_text import json_lines
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.durations import Duration
from signoff.pipeline.model import Config, Names, OnFailure, Retry
from signoff.pipeline.secrets import SecretUrl
from signoff.plugin.configs import SinkConfig, SourceConfig
from signoff.plugin.events import event_batch
from signoff.plugin.failures import transient
from signoff.sinks.contract import EVENT_ID, BatchRef, Part, Refusal, RunRef, Sink, Writer
from signoff.sinks.refusal import Fit, RowsRejected, brief, fit, isolate, refused
from signoff.sources.contract import EndOfSource, EventLog, Resume, Settlement, Source, SourceContext

if TYPE_CHECKING:
    from signoff.plugin.transforms import ColumnTransform, RowTransform
    from signoff.transforms.contract import FieldError
    from signoff.transforms.row_results import drop, fail

__all__ = [
    "EVENT_ID",
    "EVENT_SCHEMA",
    "BatchRef",
    "ColumnTransform",
    "Config",
    "Duration",
    "EndOfSource",
    "EventLog",
    "Field",
    "FieldError",
    "Fit",
    "Names",
    "OnFailure",
    "Part",
    "PermanentError",
    "PluginError",
    "Refusal",
    "Resume",
    "Retry",
    "RowTransform",
    "RowsRejected",
    "RunRef",
    "SecretStr",
    "SecretUrl",
    "Settlement",
    "Sink",
    "SinkConfig",
    "SinkError",
    "Source",
    "SourceConfig",
    "SourceContext",
    "SourceError",
    "TransientError",
    "Writer",
    "brief",
    "drop",
    "event_batch",
    "fail",
    "fit",
    "isolate",
    "json_lines",
    "make_directory",
    "refused",
    "sync_directory",
    "transient",
    "write_whole",
]

_OF_SPARK = {
    "ColumnTransform": "signoff.plugin.transforms",
    "RowTransform": "signoff.plugin.transforms",
    "FieldError": "signoff.transforms.contract",
    "drop": "signoff.transforms.row_results",
    "fail": "signoff.transforms.row_results",
}
"""Loaded when they are asked for: an intake process, and a source in it, does without PySpark."""


def __getattr__(name: str) -> Any:
    if name not in _OF_SPARK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_OF_SPARK[name]), name)
