"""Requests to the REST API of a tenant, without a service around it."""

from __future__ import annotations

from typing import Any

import httpx

from signoff.service.api.app import Api
from signoff.service.tenant import Tenant
from signoff.service.tokens import ROLES

TEXT = """name: alarms
sources:
  incoming: {type: files, path: ./in/*.jsonl}
sinks:
  out: {type: files, input: incoming, path: ./out}
"""
ONE = "/v1/pipelines/alarms"


class Client:
    """Requests with a token of a role."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.app = Api(tenant).application()
        self.tokens = {role: tenant.tokens.make(role, role)[1] for role in ROLES}
        self.address = ""

    def __call__(self, method: str, path: str, role: str = "administer", **more: Any) -> Any:
        headers = dict(more.pop("headers", {}))
        if role:
            headers["Authorization"] = f"Bearer {self.tokens.get(role, role)}"
        more = {"timeout": 120, **more}
        return httpx.request(method, self.address + path, headers=headers, trust_env=False, **more)

    def put(self, text: str | bytes = TEXT, **query: str) -> Any:
        return self("PUT", ONE, content=text, params={"spark": "false", "start": "false", **query})


def codes(answer: Any) -> list[str]:
    return [each["code"] for each in answer.json()["errors"]]
