"""Whose the rows of a job are, in a table or directory that several jobs may share.

Ids say which query made a row, and its number, and not which job: two jobs with a query of the same name
would overwrite each other's rows. So a place notes by query which job it takes rows from; the first one has
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from signoff.errors import PermanentError


class OthersRows(PermanentError):
    """Rows with such ids are another job's."""


TABLE = "signoff_owners"
"""In a database; columns place, source, owner."""


def refuse_others(
    place: str, owner: str, sources: Set[str], known: Mapping[str, str], give_back: Callable[[str], str]
) -> None:
    """`known`: whose the queries are. `give_back`: what removes the note of one. Raises OthersRows if one is
    another's."""
    for source in sorted(sources):
        if (other := known.get(source, owner)) != owner:
            raise OthersRows(
                f'{place} is kept for rows of a query "{source}" of the job "{other}", which came first; '
                f'those of "{owner}" would have the same ids: give the query another name, or the rows '
                f'another place; or, when no row of "{other}" is there any more, give the place back: '
                f"{give_back(source)}"
            )


def removing(place: str, source: str) -> str:
    """The statement that removes a note from a database."""
    values = (text.replace("'", "''") for text in (place, source))
    return "DELETE FROM {} WHERE place = '{}' AND source = '{}'".format(TABLE, *values)
