"""Off, traces cost nothing: nothing is loaded for them."""

from __future__ import annotations

import subprocess
import sys


def test_no_process_loads_opentelemetry_unless_traces_are_wanted() -> None:
    program = (
        "import sys, signoff.intake.__main__, signoff.engine.engine, signoff.run.supervisor, signoff.cli\n"
        "import signoff.sinks.http, signoff.link.handover\n"
        "found = [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "sys.exit(repr(found) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
