"""Replays the dead letters of the run that is delivered, and of no other."""

from __future__ import annotations

from collections.abc import Sequence

from signoff.engine.query.base import Shared
from signoff.engine.replay.replayer import Replayer
from signoff.jobs.letters import RunsOfLetters
from signoff.jobs.records import Record, Records
from signoff.ledger.letter import DeadLetter


class RunReplayer(Replayer):
    """Replays the letters of the run that is delivered; says of those that no run can replay why."""

    def __init__(self, parts: Sequence[Shared], records: Records, run: Record) -> None:
        super().__init__(parts)
        self._of_runs, self._run = records, run

    def _requested(self) -> list[DeadLetter]:
        asked = self.shared.letters.replays_requested(brief=True)
        runs = RunsOfLetters(self._of_runs.newest() if asked else [])
        in_vain: dict[str, list[DeadLetter]] = {}
        for letter in asked:
            if why := runs.obstacle(letter):
                in_vain.setdefault(why, []).append(letter)
        for why, letters in in_vain.items():
            self._fail(letters, why)
        return self._ours(asked)

    def _loaded(self, letters: Sequence[DeadLetter], most_bytes: int | None) -> list[DeadLetter]:
        return super()._loaded(self._ours(letters), most_bytes)  # others may have been asked for with them

    def _ours(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Letters of other runs that are not done wait until those are delivered."""
        ours = RunsOfLetters([self._run])
        return [letter for letter in letters if ours.run_of(letter) is not None]
