"""Whose the rows of a job are, in a table or directory that several jobs may share.

Ids say which query made a row, and its number, and not which job: two jobs with a query of the same name
would overwrite each other's rows. So a place notes by query which job it takes rows from; the first one has
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from signoff.errors import PermanentError


class OthersRows(PermanentError):
    """Rows with such ids are another job's."""


TABLE = "signoff_owners"
"""In a database; columns place, source, owner."""


def refuse_others(place: str, owner: str, sources: Set[str], known: Mapping[str, str]) -> None:
    """`known`: whose the queries are. Raises OthersRows if one is not the owner's."""
    for source in sorted(sources):
        if (other := known.get(source, owner)) != owner:
            raise OthersRows(
                f'{place} has rows of a query "{source}" of the job "{other}", which would be taken for '
                f'those of "{owner}"; give the query another name, or the rows another place'
            )
