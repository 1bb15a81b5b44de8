"""Pipelines: submit, look, start, stop, drain, remove."""

from __future__ import annotations

import os

from pydantic import Field

from signoff.errors import PipelineError
from signoff.ledger import RunLock
from signoff.operate.account import read_account
from signoff.operate.graph_view import view_graph
from signoff.pipeline.draw import mermaid
from signoff.service.api.answers import (
    Model,
    PipelineList,
    PipelineView,
    RequestFailed,
    Submitted,
    failed,
    items,
    view,
)
from signoff.service.api.endpoint import JSON, TEXT, YAML, Answer, Call, Endpoints
from signoff.service.checking import TooMany, check_text
from signoff.service.hosted import STOP_S
from signoff.service.run_process import hold
from signoff.service.tenant import Busy
from signoff.watch.status import read_status

endpoints = Endpoints()
ONE = "/v1/pipelines/{name}"
_LONGEST_S = 24 * 3600.0
_DISCARDING = "settle them, or delete the pipeline with ?discard=true (with the client: --discard)"


class Submission(Model):
    """How a text is taken."""

    start: bool = True
    """Of a new pipeline: whether it runs at once."""
    spark: bool = True
    """Whether Spark is asked about expressions, schemas and functions, which takes some seconds."""


class Removal(Model):
    """How a pipeline is removed."""

    discard: bool = False
    """Also what is not settled, waits in buffers, or is stored as a dead letter."""


class Within(Model):
    """How long a run may go on."""

    within: float = Field(default=STOP_S, ge=0, le=_LONGEST_S)
    """Seconds in which what is in flight may be finished; what is left is for the next run."""


class Patience(Model):
    """How long a run may go on."""

    within: float = Field(default=3600.0, ge=0, le=_LONGEST_S)
    """Seconds until what is still in flight is left to the next run."""


class LogPart(Model):
    """How much of a log."""

    bytes: int = Field(default=64 * 1024, ge=1, le=1024**2)


@endpoints.add("GET", "/v1/pipelines", "view", PipelineList)
def list_pipelines(call: Call) -> Answer:
    """List the pipelines, and what each is doing."""
    return Answer(
        PipelineList(pipelines=[view(each.seen()) for _, each in sorted(call.tenant.pipelines.items())])
    )


@endpoints.add(
    "PUT", ONE, "administer", {200: Submitted, 201: Submitted, 202: Submitted},
    query=Submission, body=YAML, slow=True, changes="submit",
)  # fmt: skip
def submit(call: Call) -> Answer:
    """Create a pipeline, or update it: checked first, drained, switched, started; rolled back if it does not
    start. The same text again changes nothing."""
    name, text, asked = call.path["name"], call.body, call.query
    tenant = call.tenant
    try:
        with tenant.changing(name):
            hosted = tenant.pipelines.get(name)
            if hosted is not None:
                if hosted.record.update is not None:
                    raise failed(
                        409, "update-under-way", "another update of it is under way", "wait for its end"
                    )
                if hosted.records.text(hosted.record.revision) == text:
                    return Answer(Submitted(result="unchanged", pipeline=view(hosted.seen()), warnings=[]))
            checked = check_text(
                tenant.place(name), text, tenant.environment(), tenant.secrets.values(), spark=asked.spark
            )
            call.check_token()  # a check takes up to minutes
            if checked.problems:
                raise RequestFailed(422, items(checked.problems))
            if hosted is None:
                made = tenant.create(name, text, start=asked.start)
                return Answer(
                    Submitted(result="created", pipeline=view(made.seen()), warnings=items(checked.warnings)),
                    201,
                )
            hosted.change(text)
            return Answer(
                Submitted(result="updating", pipeline=view(hosted.seen()), warnings=items(checked.warnings)),
                202,
            )
    except Busy:
        raise failed(409, "busy", "somebody else is changing this pipeline", "try again") from None
    except TooMany:
        raise failed(503, "busy", "too many pipelines are being checked", "try again later") from None


@endpoints.add("GET", ONE, "view", PipelineView)
def show(call: Call) -> Answer:
    """Show a pipeline: what it is doing, its revision, the last update."""
    return Answer(view(call.pipeline().seen()))


@endpoints.add("GET", f"{ONE}/yaml", "administer", TEXT)
def text_in_force(call: Call) -> Answer:
    """The text of a pipeline as it was submitted."""
    hosted = call.pipeline()
    return Answer(hosted.records.text(hosted.record.revision))


@endpoints.add("DELETE", ONE, "administer", PipelineView, query=Removal, changes="delete")
def delete(call: Call) -> Answer:
    """Remove a pipeline that is stopped, with all in its own directory. A state directory elsewhere stays."""
    hosted = call.pipeline()
    try:
        with call.tenant.changing(hosted.name), hosted.lock:
            if hosted.removed:
                raise call.no_pipeline()
            seen = hosted.seen()
            if seen.state != "stopped" or seen.record.update or seen.record.stopping:
                raise failed(409, "still-runs", f"it is {seen.state}", "stop it first")
            if _has_other_run(call):
                raise failed(409, "still-runs", "a run that the service did not start", "stop it first")
            if not call.query.discard and (kept := _kept(call)):
                raise failed(409, "not-empty", kept, _DISCARDING)
            lock = hold(hosted.directory)
            if lock is None:
                raise failed(409, "still-runs", "a run of it is about to start or end", "try again")
            try:
                away = call.tenant.remove(hosted)
            finally:
                os.close(lock)
    except Busy:
        raise failed(409, "busy", "somebody else is changing this pipeline", "try again") from None
    call.tenant.discard(away)
    return Answer(view(seen))


def _has_other_run(call: Call) -> bool:
    try:
        return RunLock(call.tenant.graph(call.path["name"]).state).held_by() is not None
    except PipelineError:  # its text cannot be read any more, and nobody can run it
        return False


def _kept(call: Call) -> str:
    """What would be lost with a pipeline, in words."""
    found = read_status(call.tenant.graph(call.path["name"]))
    stranded = sum(each["in_flight"] for each in found["stranded"].values())
    counts = (
        (sum(each["in_flight"] for each in found["sources"].values()), "event", " in flight"),
        (stranded, "event", " in flight of sources that are gone"),
        (sum(each["waiting"] for each in found["buffers"].values()), "row", " in buffers"),
        (found["dead_letters"], "dead letter", ""),
    )
    left = [f"{number} {what}{'' if number == 1 else 's'}{where}" for number, what, where in counts if number]
    return f"it holds {', '.join(left)}" if left else ""


@endpoints.add("POST", f"{ONE}/start", "operate", {202: PipelineView}, changes="start")
def start(call: Call) -> Answer:
    """Have a pipeline run, from now on and after every restart of the service or the machine."""
    hosted = call.pipeline()
    hosted.start()
    return Answer(view(hosted.seen()), 202)


@endpoints.add("POST", f"{ONE}/stop", "operate", {202: PipelineView}, query=Within, changes="stop")
def stop(call: Call) -> Answer:
    """Have a pipeline stop: it receives no more, and finishes what is in flight for a short time."""
    hosted = call.pipeline()
    hosted.stop(call.query.within)
    return Answer(view(hosted.seen()), 202)


@endpoints.add("POST", f"{ONE}/drain", "operate", {202: PipelineView}, query=Patience, changes="drain")
def drain(call: Call) -> Answer:
    """Have a pipeline stop when all that is in flight is settled, however long that takes."""
    hosted = call.pipeline()
    hosted.stop(call.query.within)
    return Answer(view(hosted.seen()), 202)


@endpoints.add("GET", f"{ONE}/status", "view", JSON)
def status(call: Call) -> Answer:
    """What `signoff status --json` says: sources, sinks, buffers, windows, what waits."""
    return Answer(read_status(call.tenant.graph(call.pipeline().name)))


@endpoints.add("GET", f"{ONE}/audit", "view", JSON)
def audit(call: Call) -> Answer:
    """What `signoff audit --json` says: where every event is that was received, and whether it adds up."""
    return Answer(read_account(call.tenant.graph(call.pipeline().name)).to_json())


@endpoints.add("GET", f"{ONE}/graph", "view", JSON)
def graph(call: Call) -> Answer:
    """The nodes with their configuration, secrets masked; the edges; and all as a Mermaid flowchart."""
    found = call.tenant.graph(call.pipeline().name)
    return Answer({**view_graph(found).to_json(), "mermaid": mermaid(found)})


@endpoints.add("GET", f"{ONE}/log", "view", TEXT, query=LogPart)
def log(call: Call) -> Answer:
    """The end of what its runs have written to their log."""
    return Answer(call.pipeline().log.tail(call.query.bytes))
