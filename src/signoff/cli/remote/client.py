"""Requests to a service, and its errors as errors of the command."""

from __future__ import annotations

import ipaddress
import re
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import httpx

from signoff.errors import PipelineError, Problem, RequestError, SignoffError
from signoff.pipeline.secrets import register_secret

_CONNECT_S, _ANSWER_S = 10.0, 300.0
_POLL_S = 0.5


class Client:
    """Asks one service, as the holder of a token."""

    def __init__(self, server: str, token: str, ca_file: Path | None = None) -> None:
        address = _checked(server)
        register_secret(token)
        verify: ssl.SSLContext | bool = (
            True if ca_file is None else ssl.create_default_context(cafile=ca_file)
        )
        self._client = httpx.Client(
            base_url=address,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S),
            verify=verify,
            follow_redirects=False,
            trust_env=address.startswith("https:"),  # a proxy of the environment would get it in clear
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        return self._json("GET", path, params=query)

    def text(self, path: str, **query: Any) -> str:
        return self._answer("GET", path, params=query).text

    def post(self, path: str, body: Any = None, **query: Any) -> dict[str, Any]:
        return self._json("POST", path, json=body, params=query)

    def put_text(self, path: str, text: bytes, **query: Any) -> dict[str, Any]:
        headers = {"Content-Type": "application/yaml"}
        return self._json("PUT", path, content=text, params=query, headers=headers)

    def delete(self, path: str, **query: Any) -> dict[str, Any]:
        return self._json("DELETE", path, params=query)

    def wait(self, name: str, ended: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """What a pipeline is doing as soon as that is an end. A service that is away is waited for."""
        while True:
            try:
                if ended(seen := self.get(one(name))):
                    return seen
            except NotReached:
                pass
            time.sleep(_POLL_S)

    def _json(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        answer = self._answer(method, path, **more)
        try:
            return cast(dict[str, Any], answer.json())
        except ValueError:
            where = self._client.base_url
            raise SignoffError(f"what answers at {where} is no service: {answer.text[:300]}") from None

    def _answer(self, method: str, path: str, **more: Any) -> httpx.Response:
        more["params"] = {
            key: str(value).lower() if isinstance(value, bool) else value
            for key, value in more.get("params", {}).items()
            if value is not None
        }
        try:
            answer = self._client.request(method, path, **more)
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise NotReached(f"the service at {self._client.base_url} cannot be reached: {why}") from None
        if answer.is_success:
            return answer
        raise _error(answer)


class NotReached(SignoffError):
    """Nobody answers, or not in time."""


def one(name: str, *further: str) -> str:
    """The path of a pipeline, and of something of it."""
    return "/".join(["/v1/pipelines", quote(name, safe=""), *further])


def read_token(path: Path | None) -> str:
    """The token in a file."""
    if path is None:
        raise RequestError("name the file with your token: --token-file PATH", "--token-file")
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise RequestError(f"{path} cannot be read: {why}", "--token-file") from None
    if not re.fullmatch(r"[!-~]+", token):
        raise RequestError(f"{path} holds no token, which is one word of ASCII", "--token-file")
    return token


def _checked(server: str) -> str:
    """The address, if a token may be sent to it."""
    try:
        url = httpx.URL(server)
    except httpx.InvalidURL as error:
        raise RequestError(f"{server} is not an address: {error}", "--server") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise RequestError(f"{server} is not an address such as https://host:8080", "--server")
    if url.scheme == "http" and not _is_here(url.host):
        raise RequestError(f"the token would go in clear to {url.host}; use https", "--server")
    return str(url)


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _error(answer: httpx.Response) -> SignoffError:
    try:
        problems = [Problem(**each) for each in answer.json()["errors"]]
    except (ValueError, KeyError, TypeError):
        return SignoffError(f"the service answered {answer.status_code}: {answer.text[:300]}")
    if answer.status_code == 422:
        return PipelineError(problems)
    return SignoffError("\n".join(str(problem) for problem in problems))
