"""Reports that people read: a template and rows become PDF, XLSX, HTML and JSON.

    template.py   what a user writes: title, facts, texts, tables, charts
    compose.py    template + rows ─► Report (see model.py), with everything decided that all forms share
    pdf.py, xlsx.py, html.py, json_text.py     Report ─► bytes, one module per form

Knows nothing of pipelines, runs or files: the sink `report` does. The same rows, in whatever order they come,
give the same bytes; only the time of creation differs, where one is given.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Literal

from signoff.reports.compose import compose
from signoff.reports.model import Report
from signoff.reports.template import Template

__all__ = ["FORMATS", "Format", "MissingLibrary", "Report", "Template", "compose", "render"]

Format = Literal["pdf", "xlsx", "html", "json"]

FORMATS: dict[Format, str] = {
    "pdf": "signoff.reports.pdf",
    "xlsx": "signoff.reports.xlsx",
    "html": "signoff.reports.html",
    "json": "signoff.reports.json_text",
}
"""The module of each form. It is loaded when it is needed: two of them need libraries that are an extra."""


class MissingLibrary(Exception):
    """A form needs a library that is not installed."""


def render(report: Report, form: Format) -> bytes:
    """The report in one form. Raises MissingLibrary, with what to install."""
    return renderer(form)(report)


def renderer(form: Format) -> Callable[[Report], bytes]:
    try:
        module = import_module(FORMATS[form])
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("reportlab", "xlsxwriter", "PIL"):
            raise
        raise MissingLibrary(
            f'a report as {form} needs {error.name}, which is not installed: pip install "signoff[report]"'
        ) from error
    found: Callable[[Report], bytes] = module.render
    return found
