"""Requests to a cluster: which of its hosts are asked, with which credentials, what is checked at first."""

from __future__ import annotations

import base64
import random
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx
import orjson

from signoff.bounded_http import NoAnswer, Reply, Unsendable, ask, client
from signoff.errors import TransientError
from signoff.pipeline.secrets import SecretUrl
from signoff.sinks.opensearch import answers

if TYPE_CHECKING:
    from signoff.sinks.opensearch.sink import SearchSinkConfig

_CHECK_READ = 256 * 1024
_NEXT_HOST = (502, 503, 504)
"""Statuses by which a host, or a proxy in front of it, says that it cannot work at the moment."""


class Hosts:
    """The hosts of one cluster, for one task. Not for several threads."""

    def __init__(self, config: SearchSinkConfig, base: Path) -> None:
        self._config = config
        self._hosts = list(config.hosts)
        random.shuffle(self._hosts)  # or all tasks would ask the first
        self._client = _client(config, base)

    def __len__(self) -> int:
        return len(self._hosts)

    def ask(
        self, method: str, path: str, content: bytes | None = None, *, most_bytes: int = _CHECK_READ
    ) -> Reply:
        """The answer of the first host that gives one. Raises NoAnswer, of the last one, or Unsendable. One
        that did not answer is asked last from then on."""
        for tries_left in reversed(range(len(self._hosts))):
            host = self._hosts[0]
            try:
                answer = self._asked(host, method, path, content, most_bytes)
            except NoAnswer as error:
                self._hosts.append(self._hosts.pop(0))
                if not tries_left:
                    raise NoAnswer(f"{host}: {error}") from error
                continue
            if answer.status not in _NEXT_HOST or not tries_left:
                return answer
            self._hosts.append(self._hosts.pop(0))
        raise NoAnswer("there is no host")

    def close(self) -> None:
        self._client.close()

    def _asked(
        self, host: SecretUrl, method: str, path: str, content: bytes | None, most_bytes: int
    ) -> Reply:
        kind = "application/x-ndjson" if path.startswith("_bulk") else "application/json"
        return ask(
            self._client,
            method,
            f"{host.get().rstrip('/')}/{path}",
            content=content,
            headers={"Content-Type": kind},
            seconds=self._config.timeout_ms / 1000,
            most_bytes=most_bytes,
        )


def check(config: SearchSinkConfig, base: Path) -> None:
    """Whether the server takes our credentials and has the ingest pipeline; puts the template.

    Raises TransientError, which says what is to be put right.
    """
    with failing_for_now():
        hosts = Hosts(config, base)
        try:
            # Whoever may write need not be allowed to look (403).
            _accepted(hosts.ask("GET", ""), 200, 403)
            if config.pipeline is not None:
                answer = hosts.ask("GET", f"_ingest/pipeline/{quote(config.pipeline, safe='')}")
                if answer.status == 404:
                    raise TransientError(f"there is no ingest pipeline {config.pipeline!r}")
                _accepted(answer, 200, 403)
            if config.template is not None:
                put = f"_index_template/{quote(config.template.name, safe='')}"
                _accepted(
                    hosts.ask("PUT", put, orjson.dumps(config.template.body)), 200, what="the template: "
                )
        finally:
            hosts.close()


@contextmanager
def failing_for_now() -> Iterator[None]:
    """TransientError where a host cannot be asked."""
    try:
        yield
    except (NoAnswer, Unsendable) as error:
        raise TransientError(str(error)) from error


def _accepted(answer: Reply, *statuses: int, what: str = "") -> None:
    if answer.status not in statuses:
        raise TransientError(f"{what}{answers.reason(answer)}")


def _client(config: SearchSinkConfig, base: Path) -> httpx.Client:
    headers = {}
    if config.api_key is not None:
        headers["Authorization"] = f"ApiKey {config.api_key.get_secret_value()}"
    elif config.username is not None and config.password is not None:
        login = f"{config.username}:{config.password.get_secret_value()}"
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    try:
        return client(
            headers,
            verify_tls=config.verify_tls,
            connections=1,
            ca_file=str(base / config.ca_file) if config.ca_file else None,
        )
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or error
        raise TransientError(f"ca_file {config.ca_file} cannot be read: {why}") from error
