"""Which messages have been received already, as which events, and which of them may come again.

A message is known by its number in the stream and the time it was stored: a stream that is deleted and made
anew counts from 1 again. Those that were refused are forgotten: when they come again they are new.
"""

from __future__ import annotations

from collections.abc import Collection

from pyroaring import BitMap64

Identity = tuple[int, int]
"""A message: its number in the stream, and when it was stored."""


class Remembered:
    def __init__(self) -> None:
        self.sequences = BitMap64()
        """Of all events whose messages are known."""
        self._events: dict[Identity, int] = {}
        self._messages: dict[int, Identity] = {}
        """The same the other way round, oldest first."""
        self._awaited: dict[int, int] = {}
        """Events of earlier links whose message may come again, with its number; in order."""
        self._answered_upto = 0

    def add(self, identity: Identity, sequence: int) -> None:
        self._events[identity] = sequence
        self._messages[sequence] = identity
        self.sequences.add(sequence)

    def came(self, identity: Identity) -> int | None:
        """The event that this message is already; it is with us now."""
        sequence = self._events.get(identity)
        if sequence is not None:
            self._awaited.pop(sequence, None)
        return sequence

    def drop(self, sequence: int) -> Identity:
        """Forget a message: when it comes again it is new."""
        identity = self._messages.pop(sequence)
        del self._events[identity]
        self._awaited.pop(sequence, None)
        self.sequences.discard(sequence)
        return identity

    def of_stream(self, made_ns: int) -> list[tuple[int, int]]:
        """Number and event of the messages of a stream that was made then."""
        return [
            (number, sequence) for (number, stored), sequence in self._events.items() if stored >= made_ns
        ]

    # What may come again

    def expect(self, made_ns: int, answered_upto: int) -> None:
        """A new link, on a stream that was made then: all may come again to which the server waits for an
        answer, or does not know that there was one."""
        self._answered_upto = answered_upto
        awaited = [(n, number) for number, n in self.of_stream(made_ns) if number > answered_upto]
        self._awaited = dict(sorted(awaited))

    def answered_upto(self, number: int) -> None:
        """The server waits for no answer to messages up to this number."""
        if number > self._answered_upto and self._awaited:
            self._awaited = {n: each for n, each in self._awaited.items() if each > number}
        self._answered_upto = number

    def awaited(self) -> int | None:
        """The first event whose message may come again."""
        return next(iter(self._awaited), None)

    def forget(self, most: int, owed: Collection[int]) -> BitMap64:
        """Forget the oldest beyond so many, but none that is owed an answer or may come again."""
        gone = BitMap64()
        if len(self._messages) <= most + len(owed) + len(self._awaited):
            return gone
        for sequence in self._messages:
            if len(self._messages) - len(gone) <= most:
                break
            if sequence not in owed and sequence not in self._awaited:
                gone.add(sequence)
        for sequence in gone:
            self.drop(sequence)
        return gone
