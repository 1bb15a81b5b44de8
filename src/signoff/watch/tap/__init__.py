"""Tap: the newest rows that pass a node, and what became of them, also while a run goes on.

A tap reads the log that the run reads, computes the plan up to the node once more, in a session of its own,
and asks the ledger what became of each event. The same range of a log gives the same rows whenever it is
read, so they are those the run saw. Rejected: to let the engine keep samples of the batch under way. It would
compile its plan anew whenever somebody begins or ends to look, and compute columns that no sink wants.

Invariants:
- Nothing is written to the state directory, no lock is taken, and no process of the run takes notice: no
  event is settled, acknowledged, trimmed, claimed at a `dedupe` or counted at a `throttle`.
- A step that asks a service or runs somebody's function is not computed, unless that is asked for.
- Values leave this package as JSON has them, without secrets.

What it can show is what is still in the log: all that is not settled, and the newest that is.
"""

from signoff.watch.tap.apart import tap_apart
from signoff.watch.tap.rows import TappedRow
from signoff.watch.tap.taps import Tap, tap

__all__ = ["Tap", "TappedRow", "tap", "tap_apart"]
