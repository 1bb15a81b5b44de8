"""Which promise is proved by which test: `docs/promises.md`, written by `make docs` from marks on the tests.

A test of a promise says so: `@pytest.mark.case(14)`. A promise without a test is listed as not kept yet.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

PROMISES: dict[str, dict[int, str]] = {
    "Settling": {
        1: "The source is not acknowledged before the sink has confirmed.",
        2: "Of several sinks the last one decides, and the source is acknowledged once.",
        3: "A permanent refusal gives the source exactly one negative answer.",
        4: "What a filter drops is acknowledged, and counted as dropped.",
        5: "An event that a step fails on is never a drop: it is a dead letter or refused; its neighbours "
        "are delivered.",
        6: "An event that no route matches meets the policy that was configured.",
        7: "An unfolded event is acknowledged with its last child; one without children at once.",
        8: "The result of events of two sources settles all of them, at both.",
        9: "An event on two paths that meet again is acknowledged once.",
        10: "A second outcome for a settled event changes nothing, and is counted.",
        11: "With 1 and 3 settled and 2 not, an offset stays at 1, and of single messages 1 and 3 are "
        "acknowledged.",
        12: "Outcomes are told apart everywhere they are shown.",
    },
    "Policies": {
        13: "Retries happen at the sink, with growing waits; the other sinks see no second copy.",
        14: "Of a bulk write only the rows that were rejected are tried again or dead-lettered.",
        15: "While one route fails the others go on, and see nothing again.",
        16: "When retries are exhausted the event is dead-lettered, refused or dropped, as configured.",
        17: "While a dead letter cannot be stored the source is not acknowledged.",
        18: "An authoritative sink settles an event while others catch up.",
        19: "A refusal reaches the source at once, or after the last route, as configured.",
        20: "A source may be acknowledged as soon as its event is on disk, and not before.",
        21: "What is not settled in time expires: a negative answer, counted; later outcomes are ignored.",
        22: "A source that cannot acknowledge takes part, beside others that can.",
        23: "Acknowledgements can be turned off, for all sources or for one.",
    },
    "Faults": {
        24: "SIGKILL of any process at any moment: nothing is lost, nothing invented.",
        25: "A write that was not recorded is repeated, and an idempotent sink shows one row.",
        26: "After a crash only the sinks that had not finished are written.",
        27: "The last batch before a silence is acknowledged promptly.",
        28: "After the broker has closed a channel its tags are not used; what comes again is recognised.",
        29: "A full disk stops receiving, loses nothing, and work goes on when there is room.",
        30: "A sink that is down for long: memory and disk stay bounded, and the source is held back.",
        31: "A run that is asked to stop finishes what is in flight, up to a deadline.",
        32: "Malformed input of every kind is a dead letter with its reason.",
        33: "An event on which the plan itself fails is found, and its neighbours are delivered.",
        45: "Everything that was not fsynced is gone (power loss): nothing that was acknowledged is lost, "
        "nothing is delivered under two ids.",
    },
    "State": {
        34: "Events in a window are settled by a save point or with its result, as configured.",
        35: "A pipeline that could wait for itself for ever is refused, with the arithmetic.",
        36: "Late events have an output of their own, and are settled.",
        37: "Disorder within the allowed lateness changes no window.",
    },
    "Repeats, clocks, changes of the pipeline": {
        41: "A duplicate shares the fate of the event it repeats: it waits while that one is in flight, is "
        "acknowledged with it, and is the first again when that one was refused or expired. A null key is "
        "never a duplicate.",
        42: "The clock jumps by an hour: no event is dropped, no window closes early, nothing expires early.",
        43: "Log and ledger that do not belong together are refused before anything is received.",
        44: "A node or source is renamed or removed while rows are owed: nothing counts as done that was not "
        "delivered, and it is said what waits and how to finish it or give it up.",
        45: "Everything that was not fsynced is gone: nothing is lost, nothing is delivered under two ids.",
        46: "No message, header, file or request stops its source; no slow client keeps others out.",
    },
    "Jobs": {
        47: "The same event twice starts one run; a kill at any moment leaves one report.",
        48: "The event that started a run is acknowledged when its report is there. A run that fails is "
        "retried, then the event meets its `on_failure`.",
        49: "Many events of one key: one run, or as many as the cool-down allows; each is settled by a run "
        "that covers its data.",
        50: "A schedule runs each period once: through kills and downtime, with two schedulers, and across a "
        "change of daylight saving time.",
        51: "A run over data that still arrives says up to where its input was complete; run again, the "
        "report replaces itself.",
    },
    "Service": {
        54: "The service is killed: every pipeline comes back as it was asked to be; running ones were never "
        "interrupted, or resume without loss.",
        55: "A pipeline is updated while it runs: checked first, drained, changed, started; if the new one "
        "does not start, the old one runs again. In-flight events are settled by one of the two.",
    },
    "Watching": {
        57: "An event that is sampled has one trace from receipt to acknowledgement, through every sink; the "
        "context that a message brings is continued, and handed on.",
    },
    "Connectors": {
        65: "Of a bulk request each row has its own outcome: 429 and 503 are transient, mapping errors "
        "permanent.",
        66: "A server that is killed in the middle holds each event once in the end.",
    },
    "Account": {
        38: "Received = delivered + dropped + dead-lettered + refused + expired + in flight, at any moment.",
        39: "Where an event is, and why it is not acknowledged, has an answer.",
        40: "Dead letters are listed, shown, replayed to what failed only, and dropped.",
    },
}


def marked() -> Iterator[tuple[int, str, str]]:
    """Case, file and name of each test that is marked with a case."""
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                for case in _cases(node):
                    yield case, path.relative_to(ROOT).as_posix(), node.name


def _cases(function: ast.FunctionDef) -> Iterator[int]:
    for mark in function.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.case":
            yield from (int(ast.literal_eval(argument)) for argument in mark.args)


def table() -> str:
    """The document."""
    tests: dict[int, list[str]] = {}
    for case, path, name in marked():
        sentence = name.removeprefix("test_").replace("_", " ")
        tests.setdefault(case, []).append(f"[{sentence}](../{path})")
    lines = [
        "# Promises, and the tests that prove them",
        "",
        "Written by `make docs` from the tests. Each test runs the product, with real Spark, and a real",
        "broker, database or mail server where one is named. Tests that kill run it as processes, and kill",
        "them with SIGKILL; the others run its engine in a thread of the test, to share one Spark session.",
    ]
    for section, promises in PROMISES.items():
        lines += ["", f"## {section}", "", "| | promise | proved by |", "| --- | --- | --- |"]
        for case, promise in promises.items():
            proofs = "<br>".join(tests.get(case, ["*not kept yet*"]))
            lines.append(f"| {case} | {promise} | {proofs} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
