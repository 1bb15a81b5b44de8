"""Whose fault an error of PostgreSQL is: a row's, or the sink's. Decided by its SQLSTATE.

    the sink's      no connection, authorisation, read-only, deadlock or serialization failure, no resources
                    (disk full), locks, operator's intervention (restart, statement timeout), system errors:
                    the rows wait, none of them is blamed
    uncertain       syntax or access (a column or function that is not there), not supported, internal errors:
                    a row's where other rows of the same write are taken, else the sink's
    a row's         all others: data, constraints, limits, ASSERT, row-level security, and whatever code a
                    trigger raises. It is refused for good, alone

A missing table and missing permissions are mended by somebody, so rows wait for that too; a statement that
can never work (a column that is missing and may not be added) refuses them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psycopg

SINKS = ("08", "25", "26", "28", "3D", "3F", "40", "53", "55", "57", "58", "F0")
"""Classes of errors no row is to blame for."""
UNCERTAIN = ("0A", "42", "XX")
_MENDED = ("42P01", "42501")
"""Undefined table, insufficient privilege: waited for."""
DENIED = "42501"
"""Insufficient privilege; also what row-level security says of a row."""


def is_sinks(state: str | None) -> bool:
    """Whether no row can be to blame. Without a state, the connection is gone."""
    return state is None or state[:2] in SINKS


def can_pass(error: psycopg.Error) -> bool:
    """Whether an error that is the sink's may be over later."""
    state = error.sqlstate
    return is_sinks(state) or state in _MENDED or (state or "")[:2] == "XX"


def listed(classes: Iterable[str]) -> str:
    """For SQL."""
    return ", ".join(f"'{one}'" for one in classes)
