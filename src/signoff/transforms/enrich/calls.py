"""The requests of `enrich`, on an executor: several at once, repeated for a moment, remembered for a while.

What a response means is decided here, by its status alone:

    2xx                        the answer
    404                        nothing there: `on_missing`
    408, 425, 429, 5xx, none   not now: asked again for a moment, then the event waits
    any other                  never: `on_error`

A request about several events that is rejected (400, 413, 422) is repeated in halves until the events at
fault stand alone. When several requests in a row get no response at all, the rest of the rows at hand is not
asked about: a service that is down costs a few timeouts, not one per event.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from string import Formatter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import httpx
import pyarrow as pa

from signoff.bounded_http import (
    NoAnswer,
    Reply,
    Unsendable,
    ask,
    client,
    json_elements,
    read_json,
    retry_after,
)
from signoff.pipeline.secrets import KnownSecrets, excerpt, redact
from signoff.transforms.row_results import RowResult, result_text

if TYPE_CHECKING:
    from signoff.transforms.enrich.step import EnrichConfig

ANSWER = "text STRING, error STRING"
"""What becomes of an event: the text of the answer, or what the step says of it (see `row_results`)."""
_ARROW = pa.struct([pa.field("text", pa.string()), pa.field("error", pa.string())])

_NOT_NOW = (408, 425, 429)
_SPLIT = (400, 413, 422)
_MOMENT_S = 2.0
"""How long a request is tried, slow tries and the waits between them together."""
_SILENT_REQUESTS = 3
_UNANSWERED = 5
"""As often as so many requests in a row may a service that answers now and then leave us without answer."""
_SHOWN = 200
_WORKERS = 16
"""Steps whose connections and answers one process keeps."""


@dataclass(frozen=True, slots=True)
class _Request:
    """What is asked about one event; the same for events that get the same answer."""

    url: str
    body: str | None


@dataclass(frozen=True, slots=True)
class _Answered:
    text: str | None
    error: str | None = None
    keep: bool = False
    """It may be remembered: an answer, or that there is none. Errors are asked about again."""


class Calls:
    """The function Spark runs on a column of events. Pickled to executors."""

    def __init__(self, config: EnrichConfig, key: str) -> None:
        self.config, self.key, self.secrets = config, key, KnownSecrets()

    def __call__(self, events: pa.Array) -> pa.Array:
        worker = _worker(self.key, self.config)
        asked = [None if event is None else _request(self.config, event) for event in _read(events)]
        wanted = [request for request in asked if isinstance(request, _Request)]
        answers = iter(worker.answers(wanted))
        found = [
            None if request is None else (next(answers) if isinstance(request, _Request) else request)
            for request in asked
        ]
        rows = [None if one is None else {"text": one.text, "error": one.error} for one in found]
        return pa.array(rows, _ARROW)


def arrow_function(calls: Calls) -> Callable[[pa.Array], pa.Array]:
    """As Spark wants it: it reads in type hints which kind of function it is, and finds none at an object."""

    def ask(events: pa.Array) -> pa.Array:
        return calls(events)

    return ask


_VALUE = "\0"
"""Stands before each value while an address is put together; neither it nor a quoted value can hold it."""


def _request(config: EnrichConfig, event: dict[str, Any]) -> _Request | _Answered:
    if "unreadable" in event:
        return _Answered(
            None, result_text(RowResult.FAILED, "the text of a column it is asked with is not valid UTF-8")
        )
    parts, values = [], iter(event["values"])
    for text, name, _, _ in Formatter().parse(config.url.get()):
        parts.append(text)
        if name is not None:
            value = next(values)
            if value is None:
                return _Answered(
                    None, result_text(RowResult.FAILED, f'column "{name}" in the address is null')
                )
            parts.append(_VALUE + quote(value, safe=""))
    address = "".join(parts)
    if _leads_elsewhere(address):
        return _Answered(
            None,
            result_text(
                RowResult.FAILED, 'a value in the address is "." or "..", which names another address'
            ),
        )
    return _Request(address.replace(_VALUE, ""), event["body"])


def _leads_elsewhere(address: str) -> bool:
    """Whether a value makes a part of the path a step up or none (also for a server that decodes twice)."""
    path = re.split(r"[?#]", address, maxsplit=1)[0]
    held = [part.replace(_VALUE, "") for part in path.split("/") if _VALUE in part]
    return any(unquote(unquote(part)) in (".", "..") for part in held)


def _read(events: pa.Array) -> Iterator[dict[str, Any] | None]:
    """The events, also if the text of one of them is not UTF-8."""
    try:
        yield from events.to_pylist()
    except UnicodeDecodeError:
        for event in events:
            try:
                yield event.as_py()
            except UnicodeDecodeError:
                yield {"unreadable": True}


class _Worker:
    """What a process keeps of a step between batches: connections, and answers."""

    def __init__(self, config: EnrichConfig) -> None:
        self.config = config
        self.client = config.open_client()
        self.cache = _Memory(config.cache.seconds, config.cache.entries) if config.cache else None

    def answers(self, wanted: Sequence[_Request]) -> list[_Answered]:
        """An answer for each request, in order."""
        if self.cache is None:
            return self._ask(wanted)
        known: dict[_Request, _Answered] = {}
        unknown: list[_Request] = []
        for request in dict.fromkeys(wanted):
            if (found := self.cache.get(request, time.monotonic())) is not None:
                known[request] = found
            else:
                unknown.append(request)
        for request, answer in zip(unknown, self._ask(unknown), strict=True):
            known[request] = answer
            if answer.keep:
                self.cache.put(request, answer, time.monotonic())
        return [known[request] for request in wanted]

    def _ask(self, wanted: Sequence[_Request]) -> list[_Answered]:
        size = self.config.batch
        groups = [wanted[start : start + size] for start in range(0, len(wanted), size)]
        batch = _Batch(self.config, self.client)
        if len(groups) <= 1:
            return [answer for group in groups for answer in batch.ask(group)]
        with ThreadPoolExecutor(self.config.concurrency, "signoff-enrich") as pool:
            return [answer for answers in pool.map(batch.ask, groups) for answer in answers]


@dataclass
class _Batch:
    """The requests about the rows at hand."""

    config: EnrichConfig
    client: httpx.Client
    silent: int = 0
    """Requests since the last response of any kind."""
    unanswered: int = 0
    """Requests without a response."""
    url: str = field(init=False)

    def __post_init__(self) -> None:
        self.url = str(self.config.url)

    def ask(self, group: Sequence[_Request]) -> list[_Answered]:
        began, tried = time.monotonic(), 0
        while True:
            few = max(_SILENT_REQUESTS, self.config.concurrency)
            if self.silent >= few or self.unanswered >= _UNANSWERED * few:
                return self._all(group, RowResult.WAITS, f"not asked: {self.url} does not answer")
            tried += 1
            response = self._send(group)
            if isinstance(response, _Answered):
                return [response] * len(group)
            if isinstance(response, Reply):
                if not _not_now(response.status):
                    return self._read(group, response)
                reason, wait = self._describe(response), retry_after(response)
            else:
                reason, wait = f"{self.url}: {response}", None
            wait = self.config.retry.wait_s(tried) if wait is None else wait
            # Time spent in slow tries counts as well: all rows of the batch wait for this one meanwhile.
            if tried >= self.config.tries or time.monotonic() - began + wait > _MOMENT_S:
                return self._all(group, RowResult.WAITS, reason)
            time.sleep(wait)

    def _send(self, group: Sequence[_Request]) -> Reply | str | _Answered:
        """The response, or why there is none, or why there never will be one."""
        content = group[0].body
        if self.config.batch > 1:
            content = "[" + ",".join(request.body or "null" for request in group) + "]"
        try:
            response = ask(
                self.client,
                self.config.method,
                group[0].url,
                content=content,
                seconds=self.config.timeout_s,
                most_bytes=self.config.max_answer_bytes,
            )
            if response.is_success and response.trouble:
                raise NoAnswer(f"the answer breaks off: {response.trouble}")
        except Unsendable as error:
            return _Answered(None, result_text(RowResult.FAILED, redact(f"{self.url}: {error}")))
        except NoAnswer as error:
            self.silent += 1
            self.unanswered += 1
            return str(error)
        self.silent = 0
        return response

    def _read(self, group: Sequence[_Request], response: Reply) -> list[_Answered]:
        if response.is_success and not response.whole:
            most = self.config.max_answer_bytes
            return self._split(group, f"{self.url} answered with more than {most} bytes (max_answer_bytes)")
        if response.is_success:
            return self._answers(group, response)
        if response.status == 404:
            return [self._missing(self._describe(response))] * len(group)
        if response.status in _SPLIT:
            return self._split(group, self._describe(response))
        return self._all(group, RowResult.FAILED, self._describe(response))

    def _split(self, group: Sequence[_Request], reason: str) -> list[_Answered]:
        """One of several may be at fault: each half is asked about for itself."""
        if len(group) > 1:
            middle = len(group) // 2
            return self.ask(group[:middle]) + self.ask(group[middle:])
        return self._all(group, RowResult.FAILED, reason)

    def _answers(self, group: Sequence[_Request], response: Reply) -> list[_Answered]:
        if self.config.batch == 1 and self.config.schema_ is None:
            return [_Answered(response.text, keep=True)]
        try:
            if self.config.batch == 1:
                return [self._one(*read_json(response.body))]
            values = json_elements(response.body)
        except ValueError as error:
            return self._all(group, RowResult.FAILED, f"{self.url} did not answer with JSON: {error}")
        if values is None or len(values) != len(group):
            got = "no array" if values is None else f"an array of {len(values)}"
            reason = f"{self.url} answered with {got} to a request about {len(group)} events"
            return self._all(group, RowResult.FAILED, reason)
        return [self._one(value, text) for value, text in values]

    def _one(self, value: Any, text: str) -> _Answered:
        if value is None:
            return self._missing(f"{self.url} answered with null")
        if self.config.schema_ is not None and not isinstance(value, dict):
            reason = f"{self.url} answered with {type(value).__name__} where an object was expected"
            return _Answered(None, result_text(RowResult.FAILED, redact(reason)))
        return _Answered(text, keep=True)

    def _missing(self, reason: str) -> _Answered:
        if self.config.on_missing == "null":
            return _Answered(None, keep=True)
        answer = RowResult.DROPPED if self.config.on_missing == "drop" else RowResult.FAILED
        return _Answered(None, result_text(answer, redact(reason)), keep=True)

    def _all(self, group: Sequence[_Request], answer: RowResult, reason: str) -> list[_Answered]:
        return [_Answered(None, result_text(answer, redact(reason)))] * len(group)

    def _describe(self, response: Reply) -> str:
        shown = excerpt(response.text.strip(), _SHOWN) or "(no text)"
        return f"{self.url} answered {response.status} {response.phrase}: {shown}"


class _Memory:
    """Answers by request: the least recently used go first, and none is older than it may be."""

    def __init__(self, seconds: float, entries: int) -> None:
        self._seconds, self._entries = seconds, entries
        self._kept: OrderedDict[_Request, tuple[float, _Answered]] = OrderedDict()

    def get(self, request: _Request, now: float) -> _Answered | None:
        found = self._kept.get(request)
        if found is None or found[0] <= now:
            return None
        self._kept.move_to_end(request)
        return found[1]

    def put(self, request: _Request, answer: _Answered, now: float) -> None:
        self._kept[request] = (now + self._seconds, answer)
        self._kept.move_to_end(request)
        while len(self._kept) > self._entries:
            self._kept.popitem(last=False)


_workers: OrderedDict[str, _Worker] = OrderedDict()


def _worker(key: str, config: EnrichConfig) -> _Worker:
    """A process runs one task after the other, each with a copy of the function: this is what stays."""
    if key not in _workers:
        _workers[key] = _Worker(config)
        while len(_workers) > _WORKERS:
            _workers.popitem(last=False)[1].client.close()
    _workers.move_to_end(key)
    return _workers[key]


def open_client(config: EnrichConfig) -> httpx.Client:
    """A client for the service of a step."""
    headers = {name: value.get_secret_value() for name, value in config.headers.items()}
    if config.body:
        headers.setdefault("Content-Type", "application/json")
    if config.token is not None:
        headers["Authorization"] = f"Bearer {config.token.get_secret_value()}"
    secure = config.url.get().lower().startswith("https:") and config.verify_tls
    return client(headers, verify_tls=secure, connections=config.concurrency)


def _not_now(status: int) -> bool:
    return status in _NOT_NOW or status >= 500
