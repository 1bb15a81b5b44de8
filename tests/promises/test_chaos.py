"""Cases 24 to 26 all at once: the short form of `make chaos`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.brokers import rabbitmq_is_installed
from tests.chaos.faults import KILLS, plan
from tests.servers import postgres_programs

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(900)]

MESSAGES, SEED, EVERY_S = 15_000, 173, 2.0
KINDS = (*KILLS, "cut")
"""The others, which take time, root or a compiler, are in the long form."""


def test_the_short_form_has_every_kind_of_fault() -> None:
    assert {fault.kind for fault in plan(len(KILLS), SEED, EVERY_S, KINDS)} == set(KINDS)


@pytest.mark.case(24, 25, 26)
@pytest.mark.skipif(not rabbitmq_is_installed(), reason="RabbitMQ is not installed")
@pytest.mark.skipif(postgres_programs() is None, reason="PostgreSQL is not installed")
def test_nothing_is_lost_or_doubled_whatever_is_killed(tmp_path: Path) -> None:
    options = {"messages": MESSAGES, "kills": len(KILLS), "seed": SEED, "every": EVERY_S, "keep": tmp_path}
    command = [sys.executable, "-m", "tests.chaos.run"]
    command += [f"--{name}={value}" for name, value in options.items()]
    command += ["--kinds", *KINDS]
    # Terminated, not killed, when it takes too long: then it ends the servers it has started.
    command = ["timeout", "850", *command]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    last = done.stdout.strip().rpartition("\n")[2]
    assert last == f"chaos: ok seed={SEED} messages={MESSAGES} kills={len(KILLS)}", done.stdout + done.stderr
