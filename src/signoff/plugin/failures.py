"""Errors of a client library as errors that the engine understands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from signoff.errors import SinkError, TransientError
from signoff.sinks.refusal import brief


@contextmanager
def transient(*errors: type[BaseException], what: str = "") -> Iterator[None]:
    """Inside of it, errors of these types become TransientError: nothing is lost, the rows wait and are tried
    again as the sink's `retry` says.

        with transient(OSError, what=f"cannot write {path}"):
            file.flush()

    The text is short and free of registered secrets. Errors that are SinkErrors already pass as they are.
    """
    try:
        yield
    except SinkError:
        raise
    except errors as error:
        text = brief(f"{type(error).__name__}: {error}")
        raise TransientError(f"{what}: {text}" if what else text) from error
