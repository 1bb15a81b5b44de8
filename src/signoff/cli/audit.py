"""`signoff audit`: prove that every event received is accounted for."""

from __future__ import annotations

import json

import typer

from signoff.cli.reading import AsJson, PipelineFile, dash, ignored_outcomes, load_for_reading, table
from signoff.ledger.audit import Audit
from signoff.operate.account import read_account
from signoff.terminal import say


def command(file: PipelineFile, as_json: AsJson = False) -> None:
    """Print the account of each source: where every received event is.

    Exits with 1 when an account does not add up, or log, ledger and dead letters contradict each other;
    each finding is printed to standard error.
    """
    found = read_account(load_for_reading(file))
    report = found.audit
    if as_json:
        say(json.dumps(found.to_json()))
    else:
        _print(report)
        for sentence in found.gone.sentences():
            say(sentence)
    for finding in report.findings:
        say(str(finding), err=True)
    if not report.balanced:
        raise typer.Exit(1)


def _print(report: Audit) -> None:
    names = list(report.total.as_dict())
    rows = [[source, *account.as_dict().values()] for source, account in report.sources.items()]
    if len(rows) > 1:
        rows.append(["all", *report.total.as_dict().values()])
    header = ["source", *(dash(name) for name in names)]
    say(table(header, rows, right=header[1:]))
    if report.buffers:
        rows = [[buffer, *account.as_dict().values()] for buffer, account in report.buffers.items()]
        say(table(["rows of", *header[1:]], rows, right=header[1:]))
    for source, number in report.ignored.items():
        if number:
            say(f"{source}: {ignored_outcomes(number)}")
    for source in report.stranded:
        left = report.accounts[source].in_flight
        say(
            f"{source} is not in the pipeline any more, and {left} of its events are not settled: see "
            "signoff sources --help"
        )
    if report.balanced:
        say("balanced: received = delivered + dropped + dead-lettered + refused + expired + in flight")
    else:
        say("NOT BALANCED", err=True)
    say("account: " + " ".join(f"{name}={number}" for name, number in report.total.as_dict().items()))
