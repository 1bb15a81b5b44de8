"""How long to wait before one that owes rows is asked again; when a run that is to end has waited enough."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from signoff.engine.batch.interrupts import GaveUp, Interrupts
from signoff.engine.delivery.open_sinks import SinkEntry
from signoff.engine.plan.retried_steps import RetriedStep
from signoff.ledger.batch_state import BatchState, Debtor, SinkState, Wait
from signoff.link.handover import HandoverConfig
from signoff.link.lookup import in_a_buffer
from signoff.pipeline.model import Retry
from signoff.sinks.contract import BatchRef
from signoff.sinks.retry import next_wait_s
from signoff.stateful.key_index import repeats_another

logger = logging.getLogger(__name__)

_CHEAP_S = 0.5
"""What a pass may take without being called costly."""
_REST = 15
"""The back-off of a sink after a costly pass that it took nothing of, as a multiple of its time."""


@dataclass
class Waits:
    """Of the batches of one source."""

    state: Path
    sinks: Mapping[str, SinkEntry]
    steps: Mapping[str, RetriedStep]
    control: Interrupts
    _failing: dict[tuple[int, Debtor, float], float] = field(default_factory=dict)
    """Batches and sinks that fail on them, and when this run has found that first."""

    def wait_s(self, batch: BatchRef, who: Debtor, state: SinkState, took_s: float = 0.0) -> float:
        """How long to wait before one that failed is asked again. Raises GaveUp at the end of patience.

        `took_s`: what asking it took. One that took nothing is to be given the whole batch again, and what
        that costs is taken from those that work: so it rests for a multiple of it.
        """
        if isinstance(who, Wait) and who.step in self.steps and self.steps[who.step].follows:
            if repeats_another(state.error):
                return next_wait_s(self.steps[who.step].retry, state.attempts)
            logger.warning('step "%s" keeps rows of batch %s waiting: %s', who.step, batch.key, state.error)
            return 1.0
        called = f'step "{who.step}"' if isinstance(who, Wait) else f'sink "{who}"'
        patience = self.control.patience_s
        if patience is not None and self._failing_s(batch.start, who, state.since) > patience:
            raise GaveUp(
                f"{called} still fails after {patience:.0f} s: {state.error}; what it owes is kept, and the "
                "next run tries again"
            )
        if isinstance(who, Wait):
            retry = self.steps[who.step].retry if who.step in self.steps else Retry()
        else:
            retry = self.sinks[who].config.retry
        wait = next_wait_s(retry, state.attempts)
        if state.wants_all:  # never a step
            rest_s = min(max(took_s - _CHEAP_S, 0.0) * _REST, retry.max_ms / 1000)
            # Not for longer than it fails already: one that was away for a moment is asked again soon.
            wait = max(wait, min(rest_s, self._failing_s(batch.start, who, state.since)))
        if not state.error:  # it is to be given rows, and has not failed
            return wait
        logger.warning(
            "%s failed on batch %s (attempt %d, next in %.1f s): %s",
            called, batch.key, state.attempts, wait, state.error,
        )  # fmt: skip
        return wait

    def see_patience(self, known: BatchState) -> None:
        """Raises GaveUp when another pipeline has not answered within the time a run that is to end has."""
        patience = self.control.patience_s
        for name, state in known.sinks.items():
            if patience is None or not state.handed_on or not self._may_lead_outside(name):
                continue
            # Of a sink that was removed it is not kept since when.
            waits_s = self._failing_s(known.ref.start, name, state.since or 0.0)
            if waits_s > patience and (name in self.sinks or not self._in_a_buffer(name, known)):
                gone = "" if name in self.sinks else ", which is not in the pipeline any more,"
                raise GaveUp(f'the pipeline behind sink "{name}"{gone} has not answered for {patience:.0f} s')

    def _in_a_buffer(self, name: str, known: BatchState) -> bool:
        return in_a_buffer(self.state, name, known.ref)

    def _may_lead_outside(self, name: str) -> bool:
        """Whether a sink has handed its rows on to another pipeline; of one that is gone, whether it may."""
        if name not in self.sinks:
            return "." not in name
        config = self.sinks[name].config
        return isinstance(config, HandoverConfig) and config.outside and not config.by_invoker

    def _failing_s(self, start: int, who: Debtor, since: float | None) -> float:
        """How long this run knows that a sink fails on a batch; the time of day may have been set since."""
        now = time.monotonic()
        return 0.0 if since is None else now - self._failing.setdefault((start, who, since), now)
