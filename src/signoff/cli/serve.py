"""`signoff serve`: keep pipelines running, and answer a REST API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from signoff.terminal import say

if TYPE_CHECKING:
    from signoff.service.server import Service


def command(
    home: Annotated[
        Path, typer.Option(help="Directory for all that the service keeps; made if it is not there.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: one that is free.")] = 8080,
    tls_cert: Annotated[Path | None, typer.Option(metavar="PATH", help="Certificate, PEM.")] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Its key, PEM, without a password.")
    ] = None,
    plain_http: Annotated[
        bool,
        typer.Option("--plain-http", help="Listen without TLS also at an address that others can reach."),
    ] = False,
    log_format: Annotated[str, typer.Option("--log-format", help="text or json (for services).")] = "text",
) -> None:
    """Keep pipelines running, each in processes of its own, and answer a REST API.

    The first start makes the token of the administrator, and says in which file it is. When the service ends,
    in whatever way, the pipelines go on; the next one finds them again.
    """
    if log_format not in ("text", "json"):
        raise typer.BadParameter("text or json", param_hint="--log-format")
    from importlib.util import find_spec

    if find_spec("cryptography") is None or find_spec("prometheus_client") is None:
        raise typer.BadParameter('pip install "signoff[service]" brings what it needs')
    from signoff.logs import set_up_logging
    from signoff.service.server import Options, Service

    set_up_logging(log_format)  # type: ignore[arg-type]
    Service(Options(home, host, port, tls_cert, tls_key, plain_http)).serve(_say)


def _say(service: Service) -> None:
    if service.first_token is not None:
        say(f"the administrator's token is in {service.first_token}", err=True)
    say(f"serving at {service.address}", err=True)
