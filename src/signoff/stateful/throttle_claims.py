"""Which rows of a `throttle` are let through: at most some with one key in any interval.

A key has so many places. A row takes one that no other row holds that was received within the interval before
or after it, and holds it from then on: unlike the owner of a key of a `dedupe`, it stays in the index when
others take the place later. So whenever a row comes again, hours later because its sink was down, it finds
the place it had, or the rows that have kept it out, whatever was let through meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from signoff.ledger.fates import Fate
from signoff.stateful.key_claims import Arrival, Claim, Decided, Decision, FirstEvent


def throttles(definition: str) -> bool:
    """Whether it is that of a `throttle`, an object; a `dedupe` has a list."""
    return definition.startswith("{")


class ThrottleClaim(Claim):
    """The decisions about some rows of one source at one throttle, inside one transaction."""

    _holders: dict[bytes, list[FirstEvent]]
    """By place: who holds it, around the time of these rows."""
    _taken: list[tuple[bytes, FirstEvent]]

    def _look_up(self, rows: Sequence[Arrival]) -> None:
        times = [row.received for row in rows]
        self._span = min(times) - self._within, max(times) + self._within
        self._holders, self._taken = {}, []
        for key in sorted({row.key for row in rows}):  # in the order of the index: its pages are read once
            self._held(key)

    def _one(self, row: Arrival) -> Decided:
        if self._is_given_up(row):
            return Decision.GIVEN_UP, None
        if self._has_a_place(row):
            return Decision.FIRST, None
        waited: FirstEvent | None = None
        repeated: FirstEvent | None = None
        circle = False
        for key in self._places(row.key):
            near = [each for each in self._held(key) if abs(row.received - each.received) <= self._within]
            lost = [each for each in near if self._fates(each.source, each.sequence) == Fate.LOST]
            for each in lost:
                self._remove(key, each)
            if len(near) == len(lost):
                return self._take_place(row, key)
            for each in near:
                if each in lost:
                    continue
                repeated = each
                if waited is None and self._is_in_flight(row, each):
                    if self._waits_for_itself(row, each):
                        circle = True
                    else:
                        waited = each
        if waited is not None:
            return Decision.WAITS, waited
        return (Decision.FIRST, None) if circle else (Decision.REPEATS, repeated)

    def _is_in_flight(self, row: Arrival, other: FirstEvent) -> bool:
        """Of another event: a second row of one event ends here, and waits for nobody."""
        own = other.source == self._source and other.sequence in (row.sequence, *row.others)
        return not own and self._fates(other.source, other.sequence) == Fate.IN_FLIGHT

    def _has_a_place(self, row: Arrival) -> bool:
        found = self._db.execute(
            "SELECT key FROM owners WHERE step = ? AND source = ? AND sequence = ? AND child = ?",
            (self._step, self._of_source, row.sequence, row.child),
        )
        return any(key.startswith(row.key) for (key,) in found)

    def _places(self, key: bytes) -> Iterator[bytes]:
        """Under what the places of a key are kept; the first one is the key itself."""
        yield key
        for place in range(1, int(json.loads(self._definition)["events"])):
            yield key + place.to_bytes(2, "big")

    def _held(self, key: bytes) -> list[FirstEvent]:
        if key not in self._holders:
            found = self._db.execute(
                "SELECT source, sequence, child, received FROM owners "
                "WHERE step = ? AND key = ? AND received BETWEEN ? AND ? ORDER BY received, sequence",
                (self._step, key, *self._span),
            )
            self._holders[key] = [FirstEvent(self._name(of), *rest) for of, *rest in found.fetchall()]
        return self._holders[key]

    def _take_place(self, row: Arrival, key: bytes) -> Decided:
        mine = FirstEvent(self._source, row.sequence, row.child, row.received)
        self._held(key).append(mine)
        self._taken.append((key, mine))
        return Decision.FIRST, None

    def _remove(self, key: bytes, lost: FirstEvent) -> None:
        self._held(key).remove(lost)
        self._lost.append((self._step, self._number(lost.source), lost.sequence, lost.child, key))

    def _owned(self) -> list[tuple[bytes, FirstEvent]]:
        return self._taken
