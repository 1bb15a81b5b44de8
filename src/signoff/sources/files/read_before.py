"""Whether files were read already under another name of their source: then all their rows are delivered
again."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from signoff.globs import is_glob, pattern_of, plain, steps_match


def read_in_common(database: Path, base: Path, path: str) -> int:
    """How many files that are there, and that `path` names, a registry says were read."""
    if not database.is_file():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
            rows = db.execute("SELECT DISTINCT path FROM files WHERE first_seq IS NOT NULL").fetchall()
    except sqlite3.Error:
        return 0  # of a version, or in a state, that cannot be read: it is only a warning
    pattern = pattern_of(base, path)
    found = [base / os.fsdecode(row[0]) for row in rows]
    return sum(_is_meant(file, pattern) and file.exists() for file in found)


def _is_meant(file: Path, pattern: str) -> bool:
    if is_glob(pattern):
        return steps_match(Path(pattern).parts, file.parts)
    return plain(pattern) in (str(file), str(file.parent))
