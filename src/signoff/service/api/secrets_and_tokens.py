"""What a tenant keeps: secrets, tokens, the trail of changes."""

from __future__ import annotations

import time
from typing import Any

from pydantic import Field

from signoff.clock import when
from signoff.service.api.answers import Model, failed
from signoff.service.api.endpoint import Answer, Call, Endpoints
from signoff.service.secret_store import Unfit
from signoff.service.tokens import LastAdministrator, Role, Token

endpoints = Endpoints()
_YEARS_S = 10 * 365 * 24 * 3600


class SecretValue(Model):
    """A secret, of 64 KiB as UTF-8 at most; no answer ever holds it."""

    value: str = Field(min_length=1, max_length=64 * 1024)


class SecretNames(Model):
    """The names of the secrets that are kept."""

    secrets: list[str]


class TokenRequest(Model):
    """A token to be made."""

    name: str = Field(min_length=1, max_length=100)
    """For people, and for the trail."""
    role: Role
    expires_in: float | None = Field(default=None, gt=0, le=_YEARS_S)
    """Seconds; null: it does not expire."""


class TokenView(Model):
    """A token, without what its holder sends."""

    id: str
    name: str
    role: Role
    made_at: str
    expires_at: str | None
    revoked_at: str | None


class NewToken(TokenView):
    """A token that was just made."""

    token: str
    """What its holder sends. It is not kept, and not shown again."""


class TokenList(Model):
    """All tokens of the tenant, with those that were revoked."""

    tokens: list[TokenView]


class TrailQuery(Model):
    """How much of the trail."""

    last: int = Field(default=100, ge=1, le=1000)


class TrailLine(Model):
    """Who changed what."""

    at: str
    token: str
    action: str
    target: str
    outcome: str


class TrailLines(Model):
    """The newest changes, the oldest of them first."""

    trail: list[TrailLine]


@endpoints.add("GET", "/v1/secrets", "administer", SecretNames)
def list_secrets(call: Call) -> Answer:
    """The names of the secrets that are kept, not their values."""
    return Answer(SecretNames(secrets=call.tenant.secrets.names()))


@endpoints.add("PUT", "/v1/secrets/{name}", "administer", SecretNames, body=SecretValue, changes="put secret")
def put_secret(call: Call) -> Answer:
    """Keep a secret, for ${secret:NAME} in pipelines; a run has it from its next start on."""
    try:
        call.tenant.secrets.put(call.path["name"], call.body.value)
    except Unfit as why:
        raise failed(422, "bad-request", f"the secret is not kept: {why}", at="value") from None
    return Answer(SecretNames(secrets=call.tenant.secrets.names()))


@endpoints.add("DELETE", "/v1/secrets/{name}", "administer", SecretNames, changes="delete secret")
def delete_secret(call: Call) -> Answer:
    """Forget a secret."""
    if not call.tenant.secrets.remove(call.path["name"]):
        raise failed(404, "no-secret", f'there is no secret "{call.path["name"]}"', at="name")
    return Answer(SecretNames(secrets=call.tenant.secrets.names()))


@endpoints.add("GET", "/v1/tokens", "administer", TokenList)
def list_tokens(call: Call) -> Answer:
    """The tokens, with what each may do, and until when."""
    return Answer(TokenList(tokens=[TokenView(**_fields(each)) for each in call.tenant.tokens.all()]))


@endpoints.add("POST", "/v1/tokens", "administer", {201: NewToken}, body=TokenRequest, changes="make token")
def make_token(call: Call) -> Answer:
    """Make a token. It is shown once."""
    asked = call.body
    expires_at = None if asked.expires_in is None else time.time() + asked.expires_in
    token, sent = call.tenant.tokens.make(asked.name, asked.role, expires_at)
    return Answer(NewToken(**_fields(token), token=sent), 201)


@endpoints.add("DELETE", "/v1/tokens/{id}", "administer", TokenList, changes="revoke token")
def revoke_token(call: Call) -> Answer:
    """Revoke a token, at once and for good."""
    try:
        found = call.tenant.tokens.revoke(call.path["id"])
    except LastAdministrator:
        message = "it is the last one that may administer, and nobody could make another"
        raise failed(409, "last-administrator", message, "make another one first", "id") from None
    if not found:
        raise failed(404, "no-token", "there is no such token", at="id")
    return list_tokens(call)


@endpoints.add("GET", "/v1/trail", "administer", TrailLines, query=TrailQuery)
def trail(call: Call) -> Answer:
    """Who changed what, and what was refused."""
    lines = [TrailLine(**each) for each in call.tenant.trail.last(call.query.last)]
    return Answer(TrailLines(trail=lines))


def _fields(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "role": token.role,
        "made_at": when(token.made_at) or "",
        "expires_at": when(token.expires_at),
        "revoked_at": when(token.revoked_at),
    }
