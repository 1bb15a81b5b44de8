"""Which events are traced, and where their traces are sent."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator


class TraceSettings(BaseModel):
    """Traces with OpenTelemetry. Fields that are left out come from the environment variables OTEL_*."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    endpoint: str | None = None
    """Address of a collector for OTLP over HTTP, such as `http://localhost:4318`; null uses
    OTEL_EXPORTER_OTLP_ENDPOINT, or else this machine."""
    headers: dict[str, SecretStr] = {}
    """Headers of each request to the collector; the values are never shown."""
    ratio: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the events without a trace context that are traced: 0.01 is one in a hundred. Events with a
    sampled context (header `traceparent`) are always traced."""
    max_events_per_second: int = Field(default=50, ge=1, le=10_000)
    """About how many events of a source are traced at most; further ones are left out. The intake and the
    engine leave out the same events first."""

    @field_validator("endpoint")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is None:
            return value
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it is not an http:// or https:// address")
        if parts.username or parts.password or parts.query:
            raise ValueError("it has a password or a query; put secrets into headers")
        return value

    @field_validator("headers")
    @classmethod
    def _can_be_sent(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        from signoff.bounded_http import require_sendable  # takes its time to load, which most save

        require_sendable(value, None)
        return value
