"""The tables of results: where they are, and that they are there before the first row.

A sink makes its table with its first row, so a table whose results have not come yet would be missing for
whoever reads them. The columns are those the sinks write.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from signoff.errors import SignoffError
from signoff.pipeline.secrets import SecretUrl
from signoff.sinks.sqlite import SqliteSink

_WINDOW = {
    "event_id": "text",
    "windowStart": "time",
    "windowEnd": "time",
    "stationId": "bigint",
    "datapointId": "integer",
    "alarmId": "integer",
}
TABLES: Mapping[str, Mapping[str, str]] = {
    "failed_equipment": {**_WINDOW, "numberOfEquipmentFailures": "bigint"},
    "grid_voltage": {**_WINDOW, "numberOfPowerGridVoltageOutrage": "bigint", "meanDeviation": "double"},
    "battery_low_voltage": {**_WINDOW, "numberOfBatteryLowVoltage": "bigint"},
    "late_alarms": {
        "event_id": "text",
        "stationId": "bigint",
        "dataPointId": "integer",
        "alarmId": "integer",
        "eventTime": "time",
        "value": "double",
        "valueThreshold": "double",
        "isActive": "boolean",
        "missedBy": "text",
    },
}
"""What analyses read."""
_SQLITE = {"time": "TEXT", "bigint": "INTEGER", "integer": "INTEGER", "boolean": "INTEGER", "double": "REAL"}
_POSTGRES = {"time": "timestamptz", "double": "double precision"}


def in_sqlite(database: Path) -> None:
    """Make what is missing of the tables. Raises SignoffError."""
    database.parent.mkdir(parents=True, exist_ok=True)
    try:
        with closing(SqliteSink(database, "").connect()) as connection:
            for table, columns in TABLES.items():
                connection.execute(_statement(table, columns, _SQLITE, "TEXT", " NOT NULL PRIMARY KEY"))
    except sqlite3.Error as error:
        raise SignoffError(f"{database}: {error}") from None


def in_postgres(url: str) -> None:
    """The same at a server."""
    try:
        import psycopg
    except ModuleNotFoundError:
        raise SignoffError('psycopg is not installed: pip install "signoff[postgres]"') from None
    shown = SecretUrl(url)
    try:
        with psycopg.connect(url, connect_timeout=10) as connection:
            for table, columns in TABLES.items():
                # Two that create the same table at once would fail on the catalogue.
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [table])
                statement: Any = _statement(table, columns, _POSTGRES, "text", " PRIMARY KEY")
                connection.execute(statement)
    except psycopg.Error as error:
        raise SignoffError(f"{shown}: {str(error).strip()}") from None


def _statement(table: str, columns: Mapping[str, str], types: Mapping[str, str], text: str, key: str) -> str:
    fields = ", ".join(
        f'"{name}" {text if kind == "text" else types.get(kind, kind)}{key if name == "event_id" else ""}'
        for name, kind in columns.items()
    )
    return f'CREATE TABLE IF NOT EXISTS "{table}" ({fields})'
