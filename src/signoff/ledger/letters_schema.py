"""The table of dead letters, `state/dead_letters.db`. What its statuses mean says `dead_letters`."""

from __future__ import annotations

from signoff.ledger.outcome import BUFFER

VERSION = 8
SCHEMA = """
CREATE TABLE letters (
    id INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT NOT NULL, stage TEXT NOT NULL,
    source TEXT NOT NULL, sequence INTEGER NOT NULL, child TEXT NOT NULL, reason TEXT NOT NULL,
    at REAL NOT NULL, payload BLOB NOT NULL, headers TEXT NOT NULL, received_at REAL,
    attempts INTEGER NOT NULL, status TEXT NOT NULL, message_id TEXT,
    incomplete TEXT NOT NULL DEFAULT '', result TEXT NOT NULL DEFAULT '', batch TEXT NOT NULL DEFAULT '',
    handed TEXT NOT NULL DEFAULT '', first_reason TEXT NOT NULL DEFAULT '', UNIQUE (event_id, stage)
);
CREATE INDEX letters_by_status ON letters (status, id);
CREATE INDEX letters_by_origin ON letters (source, sequence)
"""

UPGRADES = {
    1: "ALTER TABLE letters ADD COLUMN message_id TEXT",
    2: "ALTER TABLE letters ADD COLUMN incomplete TEXT NOT NULL DEFAULT ''",
    3: "ALTER TABLE letters ADD COLUMN result TEXT NOT NULL DEFAULT ''",
    4: "ALTER TABLE letters ADD COLUMN batch TEXT NOT NULL DEFAULT ''",
    5: "ALTER TABLE letters ADD COLUMN handed TEXT NOT NULL DEFAULT ''",
    6: """UPDATE letters SET incomplete = 'its source could not read it whole: ' || reason
          WHERE stage = source AND (reason LIKE '%only the beginning is kept' OR reason LIKE 'file is %'
          OR reason LIKE 'row has %' OR reason LIKE 'row is not %')""",
    7: "ALTER TABLE letters ADD COLUMN first_reason TEXT NOT NULL DEFAULT ''",
}

BRIEF = (
    "id, event_id, stage, reason, at, x'' AS payload, '{}' AS headers, received_at, attempts, status, "
    "message_id, incomplete, result, batch, handed, first_reason"
)

OF_BUFFER = f"source GLOB '*{BUFFER}' AND message_id IS NOT NULL"

UPSERT = """
INSERT INTO letters (event_id, stage, source, sequence, child, reason, at, payload, headers, received_at,
                     message_id, incomplete, first_reason, attempts, status)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, 'stored')
ON CONFLICT (event_id, stage) DO UPDATE SET reason = excluded.reason, payload = excluded.payload,
    headers = excluded.headers, received_at = excluded.received_at, message_id = excluded.message_id,
    incomplete = excluded.incomplete, result = '',
    first_reason = CASE WHEN status IN ('replayed', 'dropped') THEN excluded.first_reason
                        WHEN first_reason = '' AND reason != excluded.reason AND attempts > 1 THEN reason
                        ELSE first_reason END,
    batch = CASE WHEN status IN ('replayed', 'dropped') THEN '' ELSE batch END,
    at = CASE WHEN status IN ('replayed', 'dropped') THEN excluded.at ELSE at END,
    status = CASE WHEN status IN ('replayed', 'dropped') THEN 'stored' ELSE status END
"""
