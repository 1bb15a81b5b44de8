"""Cases 47 to 49 all at once: the short form of `make alerts`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.brokers import rabbitmq_is_installed

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(600)]


@pytest.mark.case(47, 48, 49)
@pytest.mark.skipif(not rabbitmq_is_installed(), reason="RabbitMQ is not installed")
def test_alerts_have_the_right_number_of_runs_and_reports_whatever_is_killed(tmp_path: Path) -> None:
    options = {"alerts": 60, "keys": 2, "kills": 4, "seed": 7, "cool-down": 60, "waves": 1, "keep": tmp_path}
    command = [sys.executable, "-m", "tests.chaos.alerts"]
    command += [f"--{name}={value}" for name, value in options.items()]
    # Terminated, not killed, when it takes too long: then it ends the servers it has started.
    done = subprocess.run(
        ["timeout", "550", *command], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    last = done.stdout.strip().rpartition("\n")[2]
    assert last.startswith("alerts: ok alerts=60 times=3 keys=2 kills=4 "), done.stdout + done.stderr
