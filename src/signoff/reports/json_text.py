"""The report as JSON, for programs: its facts, and all rows of all inputs with the types of their columns.

Values look as they do in every sink that writes JSON (see `signoff.json_text`).
"""

from __future__ import annotations

import json

import pyarrow as pa

from signoff.json_text import json_objects
from signoff.reports.model import Report


def render(report: Report) -> bytes:
    created = None if report.created is None else report.created.isoformat().replace("+00:00", "Z")
    head = {"title": report.title, "created": created, "about": dict(report.about)}
    text = json.dumps(head, ensure_ascii=False, indent=2).removesuffix("\n}")
    inputs = [_input(name, table) for name, table in report.inputs.items()]
    body = ",\n".join(inputs)
    return f'{text},\n  "inputs": {{\n{body}\n  }}\n}}\n'.encode()


def _input(name: str, table: pa.Table) -> str:
    columns = [{"name": field.name, "type": str(field.type)} for field in table.schema]
    rows = [text for batch in table.to_batches() for text in json_objects(batch).to_pylist()]
    listed = "[\n        " + ",\n        ".join(rows) + "\n      ]" if rows else "[]"
    said, called = json.dumps(columns, ensure_ascii=False), json.dumps(name, ensure_ascii=False)
    return f'    {called}: {{\n      "columns": {said},\n      "rows": {listed}\n    }}'
