"""A real `signoff serve`, and a client of it.

with served(home) as service:
    service.put("alarms", text)
    service.kill9(); service = ...
"""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from signoff.service.run_process import find_run
from tests.servers import PATIENCE_S, wait_until

SIGNOFF = Path(sys.executable).with_name("signoff")
_SERVING = re.compile(r"serving at (\S+)")


class Served:
    """One service, and requests to it as its administrator."""

    def __init__(self, home: Path, *args: str, trusts: Path | None = None) -> None:
        """`trusts`: the certificate of the service, where it has one."""
        self.home = home
        self._verify = ssl.create_default_context(cafile=trusts) if trusts else True
        home.parent.mkdir(parents=True, exist_ok=True)
        self._output = home.parent / f"{home.name}.txt"
        self._args = args
        self.start()

    def start(self) -> None:
        self._output.unlink(missing_ok=True)
        with self._output.open("ab") as file:
            self._process = subprocess.Popen(
                [str(SIGNOFF), "serve", "--home", str(self.home), "--port", "0", *self._args],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        found = wait_until(self._address, what="the service")
        self.address = found
        self.token = (self.home / "tenants/default/administrator-token").read_text().strip()

    def _address(self) -> str | None:
        assert self._process.poll() is None, self.output
        found = _SERVING.search(self.output)
        return found[1] if found else None

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {more.pop('token', self.token)}", **more.pop("headers", {})}
        return httpx.request(
            method,
            self.address + path,
            headers=headers,
            timeout=300,
            trust_env=False,
            verify=self._verify,
            **more,
        )

    def put(self, name: str, text: str, **query: Any) -> httpx.Response:
        return self.ask("PUT", f"/v1/pipelines/{name}", content=text, params={"spark": "false", **query})

    def show(self, name: str) -> dict[str, Any]:
        return dict(self.ask("GET", f"/v1/pipelines/{name}").json())

    def wait_for(self, name: str, **wanted: Any) -> dict[str, Any]:
        """Wait until a pipeline is as described."""
        last: dict[str, Any] = {}

        def holds() -> bool:
            last.update(self.show(name))
            return all(last[key] == value for key, value in wanted.items())

        wait_until(holds, PATIENCE_S, f"{name} {wanted}, {last}\n{self.output}")
        return last

    def place(self, name: str) -> Path:
        return self.home / "tenants/default/pipelines" / name

    def kill9(self) -> None:
        self._process.kill()
        self._process.wait()

    def terminate(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def clean_up(self) -> None:
        """End the service and every run of it, and wait until they are gone."""
        self._process.kill()
        self._process.wait()
        for place in (self.home / "tenants/default/pipelines").glob("*"):
            if (run := find_run(place)) is not None:
                os.kill(run.pid, signal.SIGKILL)
                wait_until(lambda place=place: find_run(place) is None)


@contextmanager
def served(home: Path, *args: str, trusts: Path | None = None) -> Iterator[Served]:
    service = Served(home, *args, trusts=trusts)
    try:
        yield service
    finally:
        service.clean_up()
