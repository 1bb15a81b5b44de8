"""The tables of the ledger.

sources     one row per source: the folded prefix [0, folded) with its counts, and where the next
            batch must begin. `told` is the position below which the intake has told the source
            everything; NULL where nobody tells it anything.
batches     one row per batch that is not folded: owed origins, delivered origins, counts by outcome of
            the origins that are settled. Batches of a source follow each other without gap.
batch_sinks how far each sink is with a batch; removed with the batch. `handed`: origins whose rows wait in
            another log (see `signoff.link`), whatever becomes of them there. `rows_of`: where it owes a
            whole batch, the origins of the rows that have come to it; `owed_children` then names those that
            have names of their own. `published_as`: the number under which a sink of whole batches
            publishes rows that are asked for by name; another one after each time, never used twice.
places      where sinks keep batches that replace what has their names, as of the last run (see the module).
exceptions  rows that were not simply delivered or filtered, and expired origins (stage ''). In the
            folded prefix only some are kept (see `compaction`); `also_delivered` keeps the one bit of the
            folded bitmap that matters for them. `transient`: the last retry failed, and a later one may not.
            `letter`: the id of the dead letter that stands for it, where that is of a row it was made into
            behind another log; '' for its own.
sinks       rows written and the last failure, for `signoff status`.
departures  running totals of the rows that left the pipeline undelivered, by stage, outcome and reason (see
            the module of that name).
tokens      of links to other pipelines that this pipeline writes (see `signoff.link.ownership`).
clock       number of the last change to anyone's settlement; the intake asks for what is newer. `published`:
            the last number that was given as `published_as`.

Invariant, true after every transaction, for every source:
    next = delivered + dropped + dead_lettered + refused + expired (sources) + the same (batches)
           + owed (batches)
"""

from __future__ import annotations

from signoff.ledger.outcome import FINAL

VERSION = 11

_DEPARTURES = """CREATE TABLE departures (
    source TEXT NOT NULL, stage TEXT NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL,
    rows INTEGER NOT NULL, PRIMARY KEY (source, stage, outcome, reason)
) WITHOUT ROWID"""
_TOKENS = "CREATE TABLE tokens (token TEXT PRIMARY KEY) WITHOUT ROWID"
_BY_LETTER = "CREATE INDEX exceptions_by_letter ON exceptions (letter) WHERE letter != ''"
_PLACES = """CREATE TABLE places (
    source TEXT NOT NULL, sink TEXT NOT NULL, place TEXT NOT NULL, PRIMARY KEY (source, sink)
) WITHOUT ROWID"""
_COUNTS = ", ".join(f"{outcome} INTEGER NOT NULL DEFAULT 0" for outcome in FINAL)

SCHEMA = f"""
CREATE TABLE clock (change INTEGER NOT NULL, published INTEGER NOT NULL DEFAULT 0);
INSERT INTO clock (change) VALUES (0);
CREATE TABLE sources (
    source TEXT PRIMARY KEY, next INTEGER NOT NULL DEFAULT 0, folded INTEGER NOT NULL DEFAULT 0,
    folded_change INTEGER NOT NULL DEFAULT 0, ahead_change INTEGER NOT NULL DEFAULT 0, told INTEGER,
    ignored INTEGER NOT NULL DEFAULT 0, {_COUNTS}
) WITHOUT ROWID;
CREATE TABLE batches (
    source TEXT NOT NULL, start INTEGER NOT NULL, "end" INTEGER NOT NULL,
    owed BLOB NOT NULL, owed_count INTEGER NOT NULL, "delivered_set" BLOB NOT NULL,
    change INTEGER NOT NULL, opened_at REAL NOT NULL, settled_at REAL, {_COUNTS},
    UNIQUE (source, start)
);
CREATE INDEX batches_by_change ON batches (source, change);
CREATE INDEX batches_open ON batches (source, start) WHERE owed_count > 0;
CREATE TABLE batch_sinks (
    source TEXT NOT NULL, start INTEGER NOT NULL, sink TEXT NOT NULL, done INTEGER NOT NULL,
    attempts INTEGER NOT NULL, error TEXT NOT NULL, since REAL, owed BLOB, owed_children TEXT, handed BLOB,
    rows_of BLOB, published_as INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (source, start, sink)
) WITHOUT ROWID;
CREATE TABLE exceptions (
    source TEXT NOT NULL, sequence INTEGER NOT NULL, child TEXT NOT NULL, stage TEXT NOT NULL,
    outcome TEXT NOT NULL, reason TEXT NOT NULL, resolved TEXT NOT NULL DEFAULT '',
    also_delivered INTEGER NOT NULL DEFAULT 0, transient INTEGER NOT NULL DEFAULT 0,
    letter TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (source, sequence, child, stage)
) WITHOUT ROWID;
{_BY_LETTER};
CREATE TABLE sinks (
    sink TEXT NOT NULL, source TEXT NOT NULL, rows INTEGER NOT NULL DEFAULT 0,
    error TEXT NOT NULL DEFAULT '', since REAL,
    PRIMARY KEY (sink, source)
) WITHOUT ROWID;
{_DEPARTURES};
{_TOKENS};
{_PLACES}
"""

UPGRADES = {
    1: "ALTER TABLE exceptions ADD COLUMN transient INTEGER NOT NULL DEFAULT 0",
    2: "ALTER TABLE batch_sinks ADD COLUMN handed BLOB",
    3: _DEPARTURES,
    4: "ALTER TABLE exceptions ADD COLUMN letter TEXT NOT NULL DEFAULT ''",
    5: _BY_LETTER,
    6: "ALTER TABLE batch_sinks ADD COLUMN rows_of BLOB",
    7: _TOKENS,
    8: "ALTER TABLE batch_sinks ADD COLUMN published_as INTEGER NOT NULL DEFAULT 0",
    9: "ALTER TABLE clock ADD COLUMN published INTEGER NOT NULL DEFAULT 0",
    10: _PLACES,
}
"""By the format it is for: the statement that makes the next one of it."""
