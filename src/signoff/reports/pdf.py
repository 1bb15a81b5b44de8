"""The report as PDF, by ReportLab: A4, its font inside, headers of tables repeated on every page.

The built-in font (Bitstream Vera) has the letters of Western and Central European languages; another font can
be given for other scripts. A letter that the font does not have is shown as a question mark, never left out.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import reportlab
from reportlab.lib.colors import HexColor
from reportlab.lib.pagesizes import A4, landscape
from reportlab.lib.styles import ParagraphStyle
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import (
    CondPageBreak,
    Flowable,
    KeepTogether,
    LongTable,
    Paragraph,
    SimpleDocTemplate,
    Spacer,
    TableStyle,
)

from signoff.reports.charts import draw
from signoff.reports.html import facts, more
from signoff.reports.model import Column, Report, Table, Text
from signoff.reports.scene import COLOURS, FAINT, GRID, INK, Label, Line, Polygon, Rectangle, Scene, Shape
from signoff.reports.texts import shown

_MARGIN = 48.0
_CELL, _PADDING = 8.0, 4.0
_MOST_FOOT = 500
"""Signs of the title, of which the foot of a page shows as many as fit."""
_MOST_LINES, _MOST_HEAD = 28, 5
"""Of a cell, and of one in the header: a row that does not fit on a page could not be shown at all."""


def render(report: Report) -> bytes:
    fonts = _Fonts.of(report.font)
    wide = max((_natural_width(table, report, fonts) for table in report.tables), default=0.0)
    size = landscape(A4) if wide > A4[0] - 2 * _MARGIN else A4
    frame = size[0] - 2 * _MARGIN
    out = io.BytesIO()
    document = SimpleDocTemplate(
        out,
        pagesize=size,
        leftMargin=_MARGIN,
        rightMargin=_MARGIN,
        topMargin=_MARGIN,
        bottomMargin=_MARGIN + 8,
        title=report.title,
        author="",
        creator="Signoff",
        invariant=1,
    )
    document.build(_story(report, fonts, frame - 12), canvasmaker=partial(_Pages, report=report, fonts=fonts))
    return out.getvalue()


@dataclass(frozen=True)
class _Fonts:
    plain: str
    bold: str

    @classmethod
    def of(cls, font: Path | None) -> _Fonts:
        if font is not None:
            return cls(*[_registered(font)] * 2)
        fonts = Path(reportlab.__file__).parent / "fonts"
        return cls(_registered(fonts / "Vera.ttf"), _registered(fonts / "VeraBd.ttf"))

    def text(self, text: str) -> str:
        """With a question mark for each letter that the font does not have."""
        known = pdfmetrics.getFont(self.plain).face.charToGlyph
        return "".join(sign if ord(sign) in known or sign in "\n\t " else "?" for sign in text)

    def width(self, text: str, size: float, *, bold: bool = False) -> float:
        return float(pdfmetrics.stringWidth(text, self.bold if bold else self.plain, size))


def _registered(path: Path) -> str:
    name = f"report:{path}"
    if name not in pdfmetrics.getRegisteredFontNames():
        pdfmetrics.registerFont(TTFont(name, str(path)))
        pdfmetrics.registerFontFamily(name, name, name, name, name)
    return name


class _Pages(Canvas):  # type: ignore[misc]
    """Numbers the pages, which is possible only when all are there, and stamps the file."""

    def __init__(self, *arguments: Any, report: Report, fonts: _Fonts, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._report, self._fonts = report, fonts
        self._kept: list[dict[str, Any]] = []
        stamp = datetime(2000, 1, 1) if report.created is None else report.created.astimezone(UTC)
        self.setDateFormatter(lambda *_: stamp.strftime("D:%Y%m%d%H%M%S+00'00'"))

    def showPage(self) -> None:  # noqa: N802
        self._kept.append(dict(self.__dict__))
        self._startPage()

    def save(self) -> None:
        for number, page in enumerate(kept := self._kept, 1):
            self.__dict__.update(page)
            self._foot(number, len(kept))
            Canvas.showPage(self)
        Canvas.save(self)

    def _foot(self, number: int, pages: int) -> None:
        self.setFont(self._fonts.plain, 7.5)
        self.setFillColor(HexColor(FAINT))
        title = self._fonts.text(" ".join(self._report.title[:_MOST_FOOT].split()))
        while self._fonts.width(title, 7.5) > self._pagesize[0] - 2 * _MARGIN - 80:
            title = title[:-2] + "…"
        self.drawString(_MARGIN + 6, 30, title)
        self.drawRightString(self._pagesize[0] - _MARGIN - 6, 30, f"Page {number} of {pages}")


def _story(report: Report, fonts: _Fonts, width: float) -> list[Flowable]:
    title = _style_of("title", fonts.bold, 18, COLOURS[0])
    story: list[Flowable] = [_paragraph(report.title, title, fonts), Spacer(0, 4)]
    story += [_fact(name, text, fonts) for name, text in facts(report)]
    story.append(Spacer(0, 10))
    body, head = _body(fonts), _heading(fonts)
    for part in report.parts:
        if isinstance(part, Text):
            paragraphs = [_paragraph(text, body, fonts) for text in part.paragraphs]
            if part.heading:
                story.append(KeepTogether([_paragraph(part.heading, head, fonts), *paragraphs[:1]]))
                paragraphs = paragraphs[1:]
            story += paragraphs
        elif isinstance(part, Table):
            story += _table(part, report, fonts, width)
        else:
            story += [Spacer(0, 12), _Picture(draw(part, report.zone), fonts, width), Spacer(0, 8)]
    return story


def _body(fonts: _Fonts) -> ParagraphStyle:
    return _style_of("body", fonts.plain, 9.5, spaceAfter=6)


def _heading(fonts: _Fonts) -> ParagraphStyle:
    return _style_of("heading", fonts.bold, 11.5, spaceBefore=12, spaceAfter=4)


def _note(fonts: _Fonts) -> ParagraphStyle:
    return _style_of("note", fonts.plain, 8, FAINT, spaceBefore=3)


def _style_of(name: str, font: str, size: float, colour: str = INK, **further: Any) -> ParagraphStyle:
    return ParagraphStyle(
        name, fontName=font, fontSize=size, leading=size * 1.4, textColor=HexColor(colour), **further
    )


def _paragraph(text: str, style: ParagraphStyle, fonts: _Fonts) -> Paragraph:
    return Paragraph(escape(fonts.text(text), quote=False).replace("\n", "<br/>"), style)


def _fact(name: str, text: str, fonts: _Fonts) -> Paragraph:
    style = _style_of("fact", fonts.plain, 8.5)
    said = f'<font color="{FAINT}">{escape(fonts.text(name), quote=False)}:</font> '
    return Paragraph(said + escape(fonts.text(text), quote=False).replace("\n", "<br/>"), style)


# -- tables


def _natural_width(table: Table, report: Report, fonts: _Fonts) -> float:
    return sum(_widths(table, report, fonts))


def _widths(table: Table, report: Report, fonts: _Fonts) -> list[float]:
    """What each column needs so that nothing is broken, long texts apart."""
    found = []
    for place, column in enumerate(table.columns):
        texts = (shown(row[place], column, report.zone) for row in table.rows[: table.shown])
        lines = (line for text in texts for line in text.split("\n")[:3])
        widest = max((fonts.width(fonts.text(line[:60]), _CELL) for line in lines), default=0.0)
        words = max((fonts.width(word, _CELL, bold=True) for word in column.heading.split()), default=0.0)
        found.append(max(min(widest, 200.0), words) + 2 * _PADDING + 1)
    return found


def _table(part: Table, report: Report, fonts: _Fonts, width: float) -> list[Flowable]:
    head = _paragraph(part.title, _heading(fonts), fonts)
    if not part.rows:
        return [KeepTogether([head, _paragraph("No rows.", _note(fonts), fonts)])]
    widths = _fitted(_widths(part, report, fonts), width)
    columns = list(zip(part.columns, widths, strict=True))
    cells: list[list[Any]] = [[_cell(column.heading, column, w, fonts, bold=True) for column, w in columns]]
    cells += [
        [_cell(shown(v, c, report.zone), c, w, fonts) for v, (c, w) in zip(row, columns, strict=True)]
        for row in part.rows[: part.shown]
    ]
    table = LongTable(cells, colWidths=widths, repeatRows=1, hAlign="LEFT", spaceAfter=6)
    table.setStyle(_style(part.columns, fonts))
    found: list[Flowable] = [CondPageBreak(90), head, table]  # a heading does not stand alone
    if part.hidden:
        found.append(_paragraph(more(part), _note(fonts), fonts))
    return found


def _fitted(widths: Sequence[float], room: float) -> list[float]:
    """Narrow columns keep what they need; the wide ones share what is left."""
    total = sum(widths)
    if total <= room:
        return list(widths)
    fair, narrow = room / len(widths), 0.0
    for _ in widths:
        kept = [width for width in widths if width <= fair]
        narrow, wide = sum(kept), len(widths) - len(kept)
        if not wide or (room - narrow) / wide <= fair + 0.01:
            break
        fair = (room - narrow) / wide
    return [min(width, fair) for width in widths]


def _cell(text: str, column: Column, width: float, fonts: _Fonts, *, bold: bool = False) -> Any:
    plain = fonts.text(_cut(text, width, _MOST_HEAD if bold else _MOST_LINES))
    if "\n" not in plain and fonts.width(plain, _CELL, bold=bold) <= width - 2 * _PADDING:
        return plain
    style = ParagraphStyle(
        "cell",
        fontName=fonts.bold if bold else fonts.plain,
        fontSize=_CELL,
        leading=_CELL + 2,
        alignment=2 if column.is_number else 0,
        splitLongWords=1,
        textColor=HexColor(INK),
    )
    return Paragraph(escape(plain, quote=False).replace("\n", "<br/>"), style)


def _cut(text: str, width: float, most: int) -> str:
    """As much of a text as fits into so many lines; an ellipsis says that there is more."""
    per_line = max(int((width - 2 * _PADDING) / (_CELL * 0.75)), 1)
    kept: list[str] = []
    for line in text.split("\n"):
        lines = max(-(-len(line) // per_line), 1)
        if lines > most:
            return "\n".join([*kept, line[: max(most * per_line - 1, 0)] + "…"])
        kept.append(line)
        most -= lines
    return text


def _style(columns: Iterable[Column], fonts: _Fonts) -> TableStyle:
    commands: list[tuple[Any, ...]] = [
        ("FONT", (0, 0), (-1, -1), fonts.plain, _CELL, _CELL + 2),
        ("FONT", (0, 0), (-1, 0), fonts.bold, _CELL, _CELL + 2),
        ("TEXTCOLOR", (0, 0), (-1, -1), HexColor(INK)),
        ("LINEBELOW", (0, 0), (-1, 0), 1.0, HexColor(COLOURS[0])),
        ("LINEBELOW", (0, 1), (-1, -1), 0.4, HexColor(GRID)),
        ("VALIGN", (0, 0), (-1, 0), "BOTTOM"),
        ("VALIGN", (0, 1), (-1, -1), "TOP"),
        ("LEFTPADDING", (0, 0), (-1, -1), _PADDING),
        ("RIGHTPADDING", (0, 0), (-1, -1), _PADDING),
        ("TOPPADDING", (0, 0), (-1, -1), 2.5),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 2.5),
    ]
    commands += [("ALIGN", (i, 0), (i, -1), "RIGHT") for i, column in enumerate(columns) if column.is_number]
    return TableStyle(commands)


# -- charts


class _Picture(Flowable):  # type: ignore[misc]
    """A chart, as wide as the page."""

    def __init__(self, scene: Scene, fonts: _Fonts, width: float) -> None:
        super().__init__()
        self._scene, self._fonts = scene, fonts
        self._scale = min(width / scene.width, 1.25)

    def wrap(self, width: float, height: float) -> tuple[float, float]:
        self._scale = min(self._scale, height / self._scene.height) if height > 300 else self._scale
        return self._scene.width * self._scale, self._scene.height * self._scale

    def draw(self) -> None:
        self.canv.saveState()
        self.canv.scale(self._scale, self._scale)
        for shape in self._scene.shapes:
            self._shape(shape)
        self.canv.restoreState()

    def _shape(self, shape: Shape) -> None:
        canvas, height = self.canv, self._scene.height
        if isinstance(shape, Rectangle):
            canvas.setFillColor(HexColor(shape.fill))
            canvas.rect(shape.x, height - shape.y - shape.height, shape.width, shape.height, stroke=0, fill=1)
        elif isinstance(shape, Label):
            self._label(shape)
        else:
            path = canvas.beginPath()
            for index, (x, y) in enumerate(shape.points):
                (path.lineTo if index else path.moveTo)(x, height - y)
            if isinstance(shape, Polygon):
                path.close()
                canvas.setFillColor(HexColor(shape.fill))
                canvas.drawPath(path, stroke=0, fill=1)
            else:
                self._pen(shape)
                canvas.drawPath(path, stroke=1, fill=0)

    def _pen(self, line: Line) -> None:
        self.canv.setStrokeColor(HexColor(line.colour))
        self.canv.setLineWidth(line.width)
        self.canv.setDash(list(line.dash))

    def _label(self, label: Label) -> None:
        self.canv.setFillColor(HexColor(label.colour))
        self.canv.setFont(self._fonts.bold if label.bold else self._fonts.plain, label.size)
        write = {
            "start": self.canv.drawString,
            "middle": self.canv.drawCentredString,
            "end": self.canv.drawRightString,
        }[label.anchor]
        text = label.text.replace("\n", " ")  # in one line: a line end would be drawn as a box
        write(label.x, self._scene.height - label.y, self._fonts.text(text))
