"""`signoff describe [TYPE]`: what a type does and which fields it has, from its own model."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from signoff.pipeline.model import KINDS, Catalog


def command(
    type_name: Annotated[
        str, typer.Argument(metavar="[TYPE]", help="A type, such as files; without one, all are listed.")
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="Describe every type.")] = False,
    errors: Annotated[bool, typer.Option("--errors", help="Describe the codes of problems instead.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="For docs/ (with --all or --errors).")] = False,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Print the JSON Schema of the type, or of a whole file."),
    ] = False,
) -> None:
    """Describe the types of nodes and their fields.

    For an editor that completes and checks pipeline files: signoff describe --schema > signoff.schema.json
    """
    from signoff.catalog import default
    from signoff.pipeline import describe, problem_codes

    if errors:
        _no_type(type_name, "--errors")
        typer.echo(problem_codes.errors_markdown() if markdown else _codes(), nl=False)
        return
    catalog = default()
    if type_name:
        _one(catalog, type_name, schema)
        return
    for kind in KINDS:
        for error in catalog.usable(kind)[1].values():
            typer.echo(f"warning: left out: {error}", err=True)
    if schema:
        typer.echo(json.dumps(describe.pipeline_schema(catalog), indent=2, ensure_ascii=False))
    elif markdown:
        typer.echo(describe.describe_markdown(catalog), nl=False)
    elif every:
        for kind in KINDS:
            for name, model in catalog.usable(kind)[0].items():
                typer.echo(describe.describe_text(name, kind, model))
    else:
        typer.echo(_listing(catalog), nl=False)


def _no_type(type_name: str, option: str) -> None:
    if type_name:
        raise typer.BadParameter(f"{option} takes no TYPE")


def _one(catalog: Catalog, type_name: str, schema: bool) -> None:
    from signoff.pipeline import describe
    from signoff.pipeline.suggestions import suggestion

    kinds = catalog.kinds(type_name)
    if not kinds:
        known = sorted({name for kind in KINDS for name in catalog.of(kind)})
        hint = suggestion(type_name, known, "the types are")
        raise typer.BadParameter(f'there is no type "{type_name}"; {hint}')
    if schema:
        schemas = {kind: describe.schema_of(catalog.of(kind)[type_name]) for kind in kinds}
        typer.echo(json.dumps(schemas, indent=2, ensure_ascii=False))
        return
    typer.echo(
        "\n".join(describe.describe_text(type_name, kind, catalog.of(kind)[type_name]) for kind in kinds),
        nl=False,
    )


def _listing(catalog: Catalog) -> str:
    lines = []
    for kind in KINDS:
        lines.append(f"{kind}s")
        lines += [f"  {name:12} {model.summary}" for name, model in catalog.usable(kind)[0].items()]
    return "\n".join([*lines, "", "signoff describe TYPE shows the fields of one."]) + "\n"


def _codes() -> str:
    from signoff.pipeline.problem_codes import CODES

    return "".join(f"{code}\n  {entry.meaning}\n  {entry.remedy}\n" for code, entry in CODES.items())
