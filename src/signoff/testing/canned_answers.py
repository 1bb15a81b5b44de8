"""`enrich` steps of a test: the service is replaced by the answers that the test gives. Nothing is sent.

Only the transport is another. What a status means, what is missing, what is tried again and what the
answer must look like is decided by the step as in a run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import httpx

from signoff.pipeline.secrets import SecretUrl
from signoff.pipeline.tests_block import Answer
from signoff.transforms.enrich.step import EnrichConfig

_HOST = "http://service.test"
_UNSET = re.compile(r"\$\{[^}]*\}")


class CannedEnrich(EnrichConfig):
    """An `enrich` step whose service is in the test."""

    canned: tuple[Answer, ...] = ()
    columns: tuple[str, ...] = ()
    """Those in the address, in order."""

    def open_client(self) -> httpx.Client:
        return httpx.Client(transport=_Canned(self))


def with_answers(config: EnrichConfig, answers: Sequence[Answer]) -> CannedEnrich:
    """The step, with an address that nobody needs to know: it holds the same columns as the real one."""
    # A `${NAME}` that is not set stands for itself in a test, and would look like a column.
    known = config.model_copy(update={"url": SecretUrl(_UNSET.sub("", config.url.get()) or _HOST)})
    columns = tuple(dict.fromkeys(known.places))
    address = SecretUrl(_HOST + "".join(f"/{{{name}}}" for name in columns))
    fields = {name: getattr(config, name) for name in EnrichConfig.model_fields}
    return CannedEnrich.model_construct(
        **{**fields, "url": address, "cache": None, "canned": tuple(answers), "columns": columns}
    )


class _Canned(httpx.BaseTransport):
    """Executor: answers each request."""

    def __init__(self, config: CannedEnrich) -> None:
        self._config = config

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode().split("/")[1:]
        asked = dict(zip(self._config.columns, map(unquote, path), strict=False))
        content = request.read()
        body = json.loads(content) if content else {}
        if self._config.batch == 1:
            status, text = self._answer({**body, **asked})
            return _response(status, text)
        answers = [self._answer(one) for one in body]
        if wrong := next((one for one in answers if one[0] not in (200, 404)), None):
            return _response(*wrong)
        return _response(200, f"[{','.join('null' if s == 404 else text for s, text in answers)}]")

    def _answer(self, asked: Mapping[str, Any]) -> tuple[int, str]:
        for canned in self._config.canned:
            if all(str(asked.get(name)) == str(value) for name, value in canned.asked.items()):
                text = canned.answer if isinstance(canned.answer, str) else json.dumps(canned.answer)
                return canned.status, text
        return 400, f"the test gives no answer for {json.dumps(asked, ensure_ascii=False)}"


def _response(status: int, text: str) -> httpx.Response:
    """One that is read as it comes, as every answer of a service is."""
    return httpx.Response(status, stream=httpx.ByteStream(text.encode()))
