"""One connection to a Redis server, as one consumer of a group. Made anew when it is lost.

The server answers in lists of bytes, as they are: an entry may have the same field twice, which the client's
own dictionaries would not show. Whatever goes wrong is LinkLost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from signoff.sources.redis.config import RedisConfig
from signoff.sources.redis.entries import Entry, entries_of

_PATIENCE_S = 5.0
"""For one answer of the server."""
_AT_ONCE = 1_000
"""Ids in one command."""


class LinkLost(Exception):
    """The connection is gone, or of no use, and why."""


class Link:
    def __init__(
        self,
        config: RedisConfig,
        base: Path,
        name: str,
        consumer: str,
        start: Callable[[bytes], bytes | None],
    ) -> None:
        """`start`: by the last id that the stream has given, the id behind which a group begins that has to
        be made; None goes by the config."""
        self._config, self._start = config, start
        self._us = (config.stream, config.group, consumer)
        self._reading = ("XREADGROUP", "GROUP", config.group, consumer)
        try:
            self._redis = Redis.from_url(
                config.url.get(),
                protocol=2,
                client_name=f"signoff-{name}",
                single_connection_client=True,
                socket_timeout=_PATIENCE_S,
                socket_connect_timeout=_PATIENCE_S,
                retry=Retry(NoBackoff(), 0),
                **_tls(config, base),
            )
        except (RedisError, OSError, ValueError) as error:
            raise LinkLost(str(error) or type(error).__name__) from error
        self._redis.response_callbacks.clear()
        try:
            self._make_group()
        except LinkLost:
            self.close()
            raise

    def history(self, after: bytes, count: int) -> list[Entry]:
        """What was given to us and is pending, by id."""
        return self._read("COUNT", count, "STREAMS", self._config.stream, after)

    def new(self, count: int, wait_s: float) -> list[Entry]:
        """What nobody was given yet; waits for something at most this long."""
        wait_ms = max(1, int(wait_s * 1000))  # 0 would be for ever
        return self._read("COUNT", count, "BLOCK", wait_ms, "STREAMS", self._config.stream, ">")

    def take_over(self, cursor: bytes, count: int) -> tuple[bytes, list[Entry]]:
        """What has been idle for too long, ours or others', and where to go on; b"0-0" at the end."""
        idle_ms = int(self._config.claim_idle * 1000)
        answer = self._do("XAUTOCLAIM", *self._us, idle_ms, cursor, "COUNT", count)
        return answer[0], entries_of(answer[1])

    def keep(self, ids: Sequence[bytes]) -> None:
        """These are not idle."""
        for some in _portions(ids):
            self._do("XCLAIM", *self._us, 0, *some, "JUSTID")

    def acknowledge(self, ids: Sequence[bytes]) -> None:
        for some in _portions(ids):
            self._together(self._acknowledgement(some))

    def bury(self, id_: bytes, reason: str) -> None:
        """Put an entry on the dead stream, and acknowledge it, in one step."""
        commands = self._acknowledgement([id_])
        for entry in entries_of(self._do("XRANGE", self._config.stream, id_, id_)):
            said = ("signoff.id", id_, "signoff.reason", reason)
            commands.insert(0, ("XADD", self._config.dead_stream, "*", *(entry.fields or ()), *said))
        self._together(commands)

    def close(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            self._redis.close()

    def _make_group(self) -> None:
        config = self._config
        try:
            about = self._redis.execute_command("XINFO", "STREAM", config.stream)
            last = bytes(dict(zip(about[::2], about[1::2], strict=False))[b"last-generated-id"])
        except ResponseError as error:
            if "no such key" not in str(error):
                raise LinkLost(str(error)) from error
            last = b"0-0"
        except (RedisError, OSError, ValueError) as error:
            raise LinkLost(str(error) or type(error).__name__) from error
        start = self._start(last) or (b"0" if config.start == "beginning" else b"$")
        try:
            self._redis.execute_command("XGROUP", "CREATE", config.stream, config.group, start, "MKSTREAM")
        except (RedisError, OSError) as error:
            if "BUSYGROUP" not in str(error):
                raise LinkLost(str(error) or type(error).__name__) from error

    def _read(self, *how: Any) -> list[Entry]:
        answer = self._do(*self._reading, *how)
        return entries_of(answer[0][1]) if answer else []

    def _acknowledgement(self, ids: Sequence[bytes]) -> list[tuple[Any, ...]]:
        commands: list[tuple[Any, ...]] = [("XACK", *self._us[:2], *ids)]
        if self._config.delete:
            commands.append(("XDEL", self._us[0], *ids))
        return commands

    def _together(self, commands: Sequence[tuple[Any, ...]]) -> None:
        """All of them or none."""
        try:
            with self._redis.pipeline(transaction=True) as pipe:
                pipe.response_callbacks = self._redis.response_callbacks
                for command in commands:
                    pipe.execute_command(*command)
                pipe.execute()
        except (RedisError, OSError, ValueError) as error:
            raise LinkLost(str(error) or type(error).__name__) from error

    def _do(self, *command: Any) -> Any:
        try:
            return self._redis.execute_command(*command)
        except (RedisError, OSError, ValueError) as error:
            raise LinkLost(str(error) or type(error).__name__) from error


def _portions(ids: Sequence[bytes]) -> list[Sequence[bytes]]:
    return [ids[first : first + _AT_ONCE] for first in range(0, len(ids), _AT_ONCE)]


def _tls(config: RedisConfig, base: Path) -> dict[str, Any]:
    if not config.url.get().startswith("rediss:"):
        return {}
    trusted = {"ssl_ca_certs": str(base / config.ca_file)} if config.ca_file else {}
    checked = "required" if config.verify_tls else "none"
    return {**trusted, "ssl_cert_reqs": checked, "ssl_check_hostname": config.verify_tls}
