"""A state that is gone although it held events: noted by the run that finds out, until it is given up.

A step with state must not begin anew by itself: events in it may be acknowledged already, and would be lost
without a word. Files beside the notes of the step; each holds up to where rows had been taken into the state.
"""

from __future__ import annotations

from signoff.durable import sync_directory, write_whole
from signoff.link.handover import LinkPlace


class LostState:
    """Of the state behind one link."""

    def __init__(self, place: LinkPlace) -> None:
        self._lost = place.notes / "state.lost"
        self._given_up = place.notes / "state.given_up"

    def note(self, taken: int) -> None:
        write_whole(self._lost, str(taken).encode())

    @property
    def noted(self) -> bool:
        return self._lost.exists()

    def give_up(self) -> None:
        """The next run may begin with an empty state."""
        self._lost.replace(self._given_up)
        sync_directory(self._given_up.parent)

    @property
    def given_up(self) -> int | None:
        """Up to where the rows were in it; None if nobody has given it up."""
        try:
            return int(self._given_up.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def forget(self) -> None:
        """The state is there."""
        for file in (self._lost, self._given_up):
            file.unlink(missing_ok=True)
