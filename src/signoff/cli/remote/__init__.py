"""`signoff --server URL …`: the command line as a client of a service. It names pipelines, not files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from signoff.cli.reading import table
from signoff.cli.remote.client import Client, one, read_token
from signoff.cli.status import print_status
from signoff.errors import SignoffError
from signoff.terminal import say

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline.")]
Wait = Annotated[bool, typer.Option(help="Wait until it is done.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
EventIds = Annotated[list[str] | None, typer.Argument(metavar="[EVENT_ID]...")]

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)
letters = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None,
    help="List, replay and drop dead letters.",
)  # fmt: skip
app.add_typer(letters, name="dead-letters")


@app.command()
def submit(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Pipeline file, YAML, of one text.")],
    name: Annotated[str | None, typer.Option(help="Its name, if not that of the file.")] = None,
    spark: Annotated[
        bool, typer.Option(help="Have Spark asked about expressions (takes some seconds).")
    ] = True,
    start: Annotated[bool, typer.Option(help="Run a new pipeline at once.")] = True,
    wait: Wait = True,
) -> None:
    """Create a pipeline, or update it; exits with 1 if it does not come up, or the old text was put back."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}") from None
    called = name or _name_in(text, file)
    with _client(context) as client:
        made = client.put_text(one(called), text, spark=spark, start=start)
        for warning in made["warnings"]:
            say(f"warning: {warning['message']}", err=True)
        say(f"{called}: {made['result']}")
        revision = made["pipeline"]["update"] and made["pipeline"]["update"]["revision"]
        if not wait or made["result"] == "unchanged" or made["pipeline"]["wanted"] == "stopped":
            return
        seen = client.wait(called, lambda seen: seen["update"] is None and seen["state"] in _ENDS)
    last = seen["last_update"]
    if revision and last and last["revision"] == revision and last["result"] == "rolled_back":
        raise SignoffError(
            f"{called}: the old text runs again, since the new one did not start: {last['reason']}"
        )
    _print(seen)
    if seen["state"] != "running":
        raise typer.Exit(1)


_ENDS = ("running", "stopped", "failed", "waiting")


@app.command("list")
def list_pipelines(context: typer.Context, as_json: AsJson = False) -> None:
    """List the pipelines, and what each is doing."""
    with _client(context) as client:
        found = client.get("/v1/pipelines")["pipelines"]
    if as_json:
        say(json.dumps(found, ensure_ascii=False))
        return
    rows = [[each["name"], each["state"], each["revision"], each["why"].partition("\n")[0]] for each in found]
    say(table(["pipeline", "state", "revision", ""], rows, right=["revision"]) if rows else "no pipelines")


@app.command()
def status(context: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Show what `signoff status` shows."""
    with _client(context) as client:
        seen, found = client.get(one(name)), client.get(one(name, "status"))
    if as_json:
        say(json.dumps(found, ensure_ascii=False))
        return
    _print(seen)
    print_status(found)  # type: ignore[arg-type]


@app.command()
def audit(context: typer.Context, name: Name) -> None:
    """Print the account as JSON; exits with 1 if it does not add up."""
    with _client(context) as client:
        found = client.get(one(name, "audit"))
    say(json.dumps(found, ensure_ascii=False))
    if not found["balanced"]:
        raise typer.Exit(1)


@app.command()
def explain(context: typer.Context, name: Name, event_id: str) -> None:
    """Print as JSON where one event is, and why."""
    with _client(context) as client:
        say(json.dumps(client.get(one(name, "events", event_id)), ensure_ascii=False))


@app.command()
def graph(context: typer.Context, name: Name) -> None:
    """Print a pipeline as a Mermaid flowchart."""
    with _client(context) as client:
        say(client.get(one(name, "graph"))["mermaid"], nl=False)


@app.command()
def buffers(context: typer.Context, name: Name) -> None:
    """Print as JSON what waits in the buffers."""
    with _client(context) as client:
        say(json.dumps(client.get(one(name, "buffers"))["buffers"], ensure_ascii=False))


@app.command()
def log(context: typer.Context, name: Name) -> None:
    """Print the end of what its runs have logged."""
    with _client(context) as client:
        say(client.text(one(name, "log")))


@app.command()
def start(context: typer.Context, name: Name, wait: Wait = True) -> None:
    """Have a pipeline run; exits with 1 if it does not come up."""
    with _client(context) as client:
        seen = client.post(one(name, "start"))
        if wait:
            seen = client.wait(name, lambda seen: seen["update"] is None and seen["state"] in _ENDS)
    _print(seen)
    if wait and seen["state"] != "running":
        raise typer.Exit(1)


@app.command()
def stop(
    context: typer.Context,
    name: Name,
    within: Annotated[float, typer.Option(min=0, help="Seconds for what is in flight.")] = 30.0,
    wait: Wait = True,
) -> None:
    """Have a pipeline stop."""
    _end(context, name, "stop", within, wait)


@app.command()
def drain(
    context: typer.Context,
    name: Name,
    within: Annotated[float, typer.Option(min=0, help="Seconds for what is in flight.")] = 3600.0,
    wait: Wait = True,
) -> None:
    """Have a pipeline stop when all that is in flight is settled."""
    _end(context, name, "drain", within, wait)


@app.command()
def delete(
    context: typer.Context,
    name: Name,
    discard: Annotated[bool, typer.Option("--discard", help="Also what is not settled.")] = False,
) -> None:
    """Remove a pipeline that is stopped, with its state directory."""
    with _client(context) as client:
        client.delete(one(name), discard=discard)
    say(f"{name}: removed")


@letters.command("list")
def list_letters(
    context: typer.Context, name: Name, stage: str | None = None, source: str | None = None,
    reason: str | None = None, since: str | None = None, until: str | None = None, limit: int = 100,
) -> None:  # fmt: skip
    """Print dead letters, a JSON object a line, the oldest first; without payloads."""
    chosen = {"stage": stage, "source": source, "reason": reason, "since": since, "until": until}
    with _client(context) as client:
        for letter in client.get(one(name, "dead-letters"), limit=limit, **chosen)["dead_letters"]:
            say(json.dumps(letter, ensure_ascii=False))


@letters.command()
def replay(
    context: typer.Context, name: Name, event_ids: EventIds = None, stage: str | None = None,
    source: str | None = None, reason: str | None = None, since: str | None = None,
    until: str | None = None, all_letters: Annotated[bool, typer.Option("--all")] = False,
) -> None:  # fmt: skip
    """Have letters sent again, by the run."""
    body = _choice(event_ids, stage, source, reason, since, until, all_letters)
    with _client(context) as client:
        say(json.dumps(client.post(one(name, "dead-letters", "replay"), body), ensure_ascii=False))


@letters.command()
def drop(
    context: typer.Context, name: Name, event_ids: EventIds = None, stage: str | None = None,
    source: str | None = None, reason: str | None = None, since: str | None = None,
    until: str | None = None, all_letters: Annotated[bool, typer.Option("--all")] = False,
) -> None:  # fmt: skip
    """Give letters up."""
    body = _choice(event_ids, stage, source, reason, since, until, all_letters)
    with _client(context) as client:
        say(json.dumps(client.post(one(name, "dead-letters", "drop"), body), ensure_ascii=False))


def _choice(
    event_ids: list[str] | None, stage: str | None, source: str | None, reason: str | None,
    since: str | None, until: str | None, all_letters: bool,
) -> dict[str, Any]:  # fmt: skip
    return {
        "event_ids": event_ids or [], "stage": stage, "source": source, "reason": reason, "since": since,
        "until": until, "all": all_letters,
    }  # fmt: skip


def _end(context: typer.Context, name: str, how: str, within: float, wait: bool) -> None:
    with _client(context) as client:
        seen = client.post(one(name, how), within=within)
        if wait:
            seen = client.wait(name, lambda seen: seen["state"] == "stopped")
    _print(seen)


def _client(context: typer.Context) -> Client:
    given = context.find_root().params
    return Client(given["server"], read_token(given["token_file"]), given["server_ca"])


def _print(seen: dict[str, Any]) -> None:
    why = f": {seen['why']}" if seen["why"] else ""
    say(f"{seen['name']}: {seen['state']}, revision {seen['revision']}{why}")


def _name_in(text: bytes, file: Path) -> str:
    """The name that stands in the text; where it cannot be read, the service says what is wrong with it."""
    from signoff.pipeline.syntax import BadYaml, parse

    try:
        found = parse(text.decode("utf-8-sig")).value
    except (BadYaml, UnicodeDecodeError):
        return file.stem
    name = found.get("name") if isinstance(found, dict) else None
    return name if isinstance(name, str) and name else file.stem
