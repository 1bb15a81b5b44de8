"""The report as one HTML page: no script, no file beside it, charts as SVG; it prints as it looks."""

from __future__ import annotations

from html import escape

from signoff.reports.charts import draw
from signoff.reports.model import Chart, Report, Table, Text
from signoff.reports.scene import Label, Line, Polygon, Rectangle, Scene, Shape
from signoff.reports.texts import moment, number, shown

_STYLE = """
body { font: 15px/1.45 "DejaVu Sans", Verdana, "Segoe UI", Arial, sans-serif; color: #222; background: #fff;
       margin: 2.5em auto; max-width: 60em; padding: 0 1.5em; }
h1 { font-size: 1.7em; margin: 0 0 .3em; color: #17365d; } h2 { font-size: 1.15em; margin: 1.8em 0 .4em; }
dl { display: grid; grid-template-columns: max-content auto; gap: .1em 1.2em; margin: 0 0 1.2em; }
dt { color: #666; } dd { margin: 0; } .note { color: #666; font-size: .85em; }
.wide { overflow-x: auto; } figure { margin: 1.8em 0; } svg { width: 100%; max-width: 800px; height: auto; }
table { border-collapse: collapse; font-size: .87em; }
th { text-align: left; border-bottom: 2px solid #17365d; padding: .3em .8em .3em 0; vertical-align: bottom;
     position: sticky; top: 0; background: #fff; }
td { border-bottom: 1px solid #e2e2e2; padding: .25em .8em .25em 0; vertical-align: top; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
@media print { body { margin: 0; max-width: none; } thead { display: table-header-group; }
               tr, figure { break-inside: avoid; } th { position: static; } }
""".strip()


def render(report: Report) -> bytes:
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(report.title)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(report.title)}</h1>",
        *_facts(report),
    ]
    for part in report.parts:
        if isinstance(part, Text):
            lines += [f"<h2>{escape(part.heading)}</h2>"] if part.heading else []
            lines += [f"<p>{_broken(paragraph)}</p>" for paragraph in part.paragraphs]
        elif isinstance(part, Table):
            lines += _table(part, report)
        else:
            lines += _chart(part, report)
    return ("\n".join([*lines, "</body></html>"]) + "\n").encode()


def _broken(text: str) -> str:
    return escape(text).replace("\n", "<br>")


def facts(report: Report) -> list[tuple[str, str]]:
    """What stands under the title in every form."""
    found = [*report.about, ("Times in", report.zone_name)]
    if report.created is not None:
        found.append(("Created", moment(report.created.replace(microsecond=0), report.zone)))
    return found


def _facts(report: Report) -> list[str]:
    rows = [f"<dt>{escape(name)}</dt><dd>{_broken(text)}</dd>" for name, text in facts(report)]
    return ["<dl>", *rows, "</dl>"]


def _table(part: Table, report: Report) -> list[str]:
    lines = [f"<h2>{escape(part.title)}</h2>"]
    if not part.rows:
        return [*lines, '<p class="note">No rows.</p>']
    sides = [' class="n"' if column.is_number else "" for column in part.columns]
    heads = (
        f"<th{side}>{escape(column.heading)}</th>" for side, column in zip(sides, part.columns, strict=True)
    )
    lines += ['<div class="wide"><table><thead><tr>' + "".join(heads) + "</tr></thead><tbody>"]
    for row in part.rows[: part.shown]:
        cells = (
            f"<td{side}>{_broken(shown(value, column, report.zone))}</td>"
            for side, column, value in zip(sides, part.columns, row, strict=True)
        )
        lines.append("<tr>" + "".join(cells) + "</tr>")
    lines.append("</tbody></table></div>")
    return [*lines, f'<p class="note">{escape(more(part))}</p>'] if part.hidden else lines


def more(part: Table) -> str:
    """What a page says of the rows it leaves out."""
    return f"{number(part.shown)} of {number(len(part.rows))} rows; the XLSX and JSON forms hold all."


def _chart(part: Chart, report: Report) -> list[str]:
    return ["<figure>", svg(draw(part, report.zone), part.title), "</figure>"]


def svg(scene: Scene, title: str) -> str:
    head = (
        f'<svg viewBox="-2 0 {scene.width + 4:g} {scene.height:g}" role="img" '
        'xmlns="http://www.w3.org/2000/svg" '
        f'font-family="DejaVu Sans, Verdana, Arial, sans-serif"><title>{escape(title)}</title>'
    )
    return head + "".join(map(_shape, scene.shapes)) + "</svg>"


def _shape(shape: Shape) -> str:
    if isinstance(shape, Rectangle):
        place = f'x="{_n(shape.x)}" y="{_n(shape.y)}" width="{_n(shape.width)}" height="{_n(shape.height)}"'
        return f'<rect {place} fill="{shape.fill}"/>'
    if isinstance(shape, Line):
        dash = f' stroke-dasharray="{" ".join(map(_n, shape.dash))}"' if shape.dash else ""
        return (
            f'<polyline points="{_points(shape.points)}" fill="none" stroke="{shape.colour}" '
            f'stroke-width="{_n(shape.width)}"{dash}/>'
        )
    if isinstance(shape, Polygon):
        return f'<polygon points="{_points(shape.points)}" fill="{shape.fill}"/>'
    return _label(shape)


def _label(shape: Label) -> str:
    anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
    weight = ' font-weight="bold"' if shape.bold else ""
    place = f'x="{_n(shape.x)}" y="{_n(shape.y)}" font-size="{_n(shape.size)}" fill="{shape.colour}"'
    return f"<text {place}{anchor}{weight}>{escape(shape.text)}</text>"


def _points(points: tuple[tuple[float, float], ...]) -> str:
    return " ".join(f"{_n(x)},{_n(y)}" for x, y in points)


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
