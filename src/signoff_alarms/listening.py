"""The command `listen`: shows results, alerts and reports as they come, and signs for what it has shown.

What it keeps: a message of the broker is acknowledged, and a file noted, when its lines have been written and
flushed. So what was not shown comes again; after a kill between the two, some lines come twice.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from signoff.durable import write_whole
from signoff.errors import SignoffError
from signoff.pipeline.secrets import SecretUrl, redact
from signoff.terminal import harmless
from signoff_alarms import pipeline as pipelines
from signoff_alarms.notices import notice, of_report
from signoff_alarms.topology import RESULTS_QUEUE

Show = Callable[[str], None]
_LOOK_S = 0.5
_UNSHOWN = 100
"""Messages that the broker hands over before the first of them is acknowledged."""
_REPORTS = (".pdf", ".html")
"""Of the forms of a report, those that people read; the first there is counts."""


def listen_command(
    home: Annotated[
        Path, typer.Option(help="Directory of `run`: its reports, and without a broker its results.")
    ] = Path("alarms"),
    rabbitmq: Annotated[
        str | None,
        typer.Option(
            envvar=pipelines.RABBITMQ,
            help="amqp://user:password@host:port/%2F: results and alerts from alarm.results.queue.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show what is there, and end.")] = False,
    alerts_only: Annotated[bool, typer.Option("--alerts", help="Alerts and reports only.")] = False,
) -> None:
    """Show results, alerts and reports as they come, until Ctrl-C; nothing is shown again next time.

    Results that --alerts leaves out are signed for as well.
    """
    stopped: list[int] = []
    with _signals(stopped):
        show = _shown(alerts_only)
        reports = Files(home, _reports(home), of_report, home / "listened.reports.json")
        try:
            if rabbitmq is not None:
                _listen(rabbitmq, show, reports, once, stopped)
            else:
                if not (home / "pipeline.yaml").is_file():
                    raise SignoffError(f"{home} holds no alarms; name another --home, or --rabbitmq")
                follow([results_of(home), reports], show, once, stopped)
        except SignoffError as error:
            typer.echo(redact(str(error)), err=True)
            raise typer.Exit(1) from None
        except BrokenPipeError:  # whoever read this has gone: what was not shown is not signed for
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None


class Files:
    """Files that are complete as soon as they are there; which were shown is on disk."""

    def __init__(
        self, home: Path, found: Callable[[], list[Path]], line_of: Callable[[Any], str], notes: Path
    ) -> None:
        self._home, self._found, self._line_of, self._notes = home, found, line_of, notes
        self._shown: dict[str, float] = {}
        if notes.is_file():
            try:
                self._shown = json.loads(notes.read_text(encoding="utf-8"))
            except ValueError:
                raise SignoffError(f"{notes} is damaged; remove it, and everything is shown again") from None

    def show_new(self, show: Show) -> int:
        """Show what is new, and note it; returns how many files that were."""
        there = {str(file.relative_to(self._home)): file for file in self._found()}
        new = {name: file for name, file in there.items() if self._shown.get(name) != _changed(file)}
        for name, file in new.items():
            stamp = _changed(file)
            for line in self._lines(file):
                show(line)
            sys.stdout.flush()
            self._shown[name] = stamp
        if new:
            self._shown = {name: stamp for name, stamp in self._shown.items() if name in there}
            try:
                write_whole(self._notes, json.dumps(self._shown).encode())
            except OSError as error:
                raise SignoffError(f"{self._notes}: cannot write: {error.strerror}") from error
        return len(new)

    def _lines(self, file: Path) -> Iterator[str]:
        if file.suffix != ".jsonl":
            yield self._line_of(file)
            return
        with suppress(FileNotFoundError), file.open("rb") as lines:
            yield from map(self._line_of, lines)


def results_of(home: Path) -> Files:
    """Results and alerts of a run without a broker. Alerts are among the results; their queue is not read."""
    place = home / "out" / "notifications"

    def found() -> list[Path]:
        return sorted((file for file in place.glob("*.jsonl")), key=lambda file: (_changed(file), file.name))

    return Files(home, found, notice, home / "listened.results.json")


def follow(files: list[Files], show: Show, once: bool, stopped: list[int]) -> None:
    """Look for new files, again and again."""
    while not stopped:
        for each in files:
            each.show_new(show)
        if once:
            return
        _pause(stopped)


def _reports(home: Path) -> Callable[[], list[Path]]:
    def found() -> list[Path]:
        every = [file for file in (home / "reports").glob("**/[!.]*") if file.suffix in _REPORTS]
        best = {file.with_suffix(""): file for file in sorted(every, reverse=True) if file.suffix == ".html"}
        best |= {file.with_suffix(""): file for file in every if file.suffix == ".pdf"}
        return sorted(best.values(), key=lambda file: (_changed(file), file.name))

    return found


def _listen(url: str, show: Show, reports: Files, once: bool, stopped: list[int]) -> None:
    """Messages of the queue, acknowledged in the order in which they were shown."""
    try:
        import pika

        from signoff.sinks.rabbitmq.publisher import connection_parameters, in_words, quiet_pika
    except ModuleNotFoundError:
        raise SignoffError('pika is not installed: pip install "signoff[rabbitmq]"') from None
    quiet_pika()
    try:
        connection = pika.BlockingConnection(connection_parameters(url, connect_timeout_s=10.0))
        try:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=_UNSHOWN)
            look_at = 0.0
            for method, _, body in channel.consume(RESULTS_QUEUE, inactivity_timeout=_LOOK_S):
                if method is not None:
                    show(notice(body))
                    sys.stdout.flush()
                    channel.basic_ack(method.delivery_tag)
                if method is None or time.monotonic() >= look_at:  # however many messages come
                    reports.show_new(show)
                    look_at = time.monotonic() + _LOOK_S
                if stopped or (once and method is None):
                    break
            channel.cancel()  # what was handed over and not shown goes back
        finally:
            if connection.is_open:
                connection.close()
    except (pika.exceptions.AMQPError, OSError, ValueError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise SignoffError(f"{SecretUrl(url)}: {RESULTS_QUEUE}: {in_words(error)}") from None


def _shown(alerts_only: bool) -> Show:
    def show(line: str) -> None:
        if not alerts_only or not line.startswith(("result", "message")):
            sys.stdout.write(harmless(line, sys.stdout) + "\n")

    return show


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _pause(stopped: list[int]) -> None:
    until = time.monotonic() + _LOOK_S
    while not stopped and time.monotonic() < until:
        time.sleep(0.05)


@contextmanager
def _signals(stopped: list[int]) -> Iterator[None]:
    before = {
        number: signal.signal(number, lambda number, _: stopped.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
