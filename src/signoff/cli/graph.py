"""`signoff graph FILE`: the pipeline as a picture."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from signoff.terminal import say


def command(
    file: Annotated[Path, typer.Argument(help="The pipeline: YAML or Python.")],
    mermaid: Annotated[bool, typer.Option("--mermaid", help="As a Mermaid flowchart, for Markdown.")] = False,
) -> None:
    """Draw a pipeline, in the terminal or as Mermaid."""
    from signoff.cli.reading import load_for_reading
    from signoff.pipeline import draw

    graph = load_for_reading(file)
    if mermaid:
        say(draw.mermaid(graph), nl=False)
        return
    picture = draw.text(graph, styled=sys.stdout.isatty())
    encoding = sys.stdout.encoding or "utf-8"
    # A terminal that cannot show the lines gets plain ones instead of an error.
    try:
        picture.encode(encoding)
    except UnicodeEncodeError:
        picture = draw.plain(picture)
    say(picture, nl=False)
