"""`signoff run`: run a pipeline, live."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from signoff.run.options import PageOptions, RunOptions

if TYPE_CHECKING:
    from signoff.pipeline.graph import Graph

_PATIENCE_S = 30.0
_TOKEN = "SIGNOFF_UI_TOKEN"
_SHORTEST_TOKEN = 16


def command(
    file: Annotated[Path, typer.Argument(help="Pipeline file, YAML or Python.")],
    once: Annotated[
        bool, typer.Option("--once", help="Process all there is, settle it, and end. Exit code 3: something "
                           "was refused or is still undelivered.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only warnings.")] = False,
    log_format: Annotated[str, typer.Option("--log-format", help="text or json (for services).")] = "text",
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="After SIGTERM, how long events in flight may take to finish.")
    ] = 30.0,
    patience_seconds: Annotated[
        float, typer.Option(min=0, help="With --once: how long to wait for a sink that fails.")
    ] = _PATIENCE_S,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Serve metrics for Prometheus there, at /metrics."),
    ] = None,
    ui: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Serve the page there: the graph, live, the account, dead "
                     "letters. On an address that other machines reach, it needs a token."),
    ] = None,
    ui_token_file: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="File with the token that one logs in to the page with.  "
                     "[env: SIGNOFF_UI_TOKEN, the token itself]"),
    ] = None,
    ui_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name under which the page is reached, such as that of a proxy; "
                     "may be repeated."),
    ] = None,
) -> None:  # fmt: skip
    """Run a pipeline until SIGTERM or Ctrl-C, then finish the events in flight; or run it once."""
    if log_format not in ("text", "json"):
        raise typer.BadParameter("text or json", param_hint="--log-format")
    if metrics is not None:
        _check_metrics(metrics)
    page = _page(ui, ui_token_file, ui_name)
    from signoff.watch.live import run_live

    def load() -> Graph:
        from signoff.catalog import default
        from signoff.logs import set_up_logging
        from signoff.pipeline.load import load as load_file

        set_up_logging(log_format)  # type: ignore[arg-type]
        return load_file(file, default())

    patience = patience_seconds if once else None
    options = RunOptions(once, drain_seconds, patience, log_format, metrics, page)  # type: ignore[arg-type]
    raise typer.Exit(run_live(load, file.absolute(), options, quiet=quiet))


def _check_metrics(address: str) -> None:
    """Before anything is started: whether it can be understood, and the library is there."""
    from importlib.util import find_spec

    if find_spec("prometheus_client") is None:
        raise typer.BadParameter(
            'pip install "signoff[metrics]" brings what it needs', param_hint="--metrics"
        )
    from signoff.watch.metrics_server import Address

    try:
        Address.parse(address)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--metrics") from error


def _page(address: str | None, token_file: Path | None, names: list[str] | None) -> PageOptions | None:
    """How the page is to be served, before anything is started."""
    token = os.environ.pop(_TOKEN, "").strip()  # no other process of the run has to know it
    if address is None:
        if token_file or names:
            raise typer.BadParameter("say where the page is served: --ui PORT", param_hint="--ui")
        return None
    from importlib.util import find_spec

    if find_spec("jinja2") is None:
        raise typer.BadParameter('pip install "signoff[page]" brings what it needs', param_hint="--ui")
    from signoff.watch.metrics_server import Address

    try:
        found = Address.parse(address)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--ui") from error
    if token_file is not None:
        try:
            token = token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"{token_file}: {error}", param_hint="--ui-token-file") from None
        if not token:
            raise typer.BadParameter(f"{token_file} is empty", param_hint="--ui-token-file")
    if 0 < len(token) < _SHORTEST_TOKEN:
        raise typer.BadParameter(f"the token has fewer than {_SHORTEST_TOKEN} characters", param_hint="--ui")
    page = PageOptions(found.host, found.port, token or None, tuple(names or ()))
    if not page.is_local and page.token is None:
        raise typer.BadParameter(
            f"other machines reach {found.host}: give a token with --ui-token-file or {_TOKEN}",
            param_hint="--ui",
        )
    return page
