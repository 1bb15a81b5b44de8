"""Spark's checkpoint of a query: where it is, which range a batch has, and what to do with a torn one.

The ledger is the authority on what is done; the checkpoint only says how Spark cuts the log into
batches (and holds the state of stateful steps). So a stateless query can lose its checkpoint: what is
open in the ledger is finished first, and a new one begins after it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time

from signoff.errors import EngineError
from signoff.pipeline.graph import Graph
from signoff.transforms.contract import Transform

logger = logging.getLogger(__name__)


class Checkpoint:
    """The checkpoint directory of one source's query."""

    def __init__(self, graph: Graph, source: str) -> None:
        steps = [
            node
            for name in graph.downstream(source)
            if isinstance((node := graph.nodes[name]).config, Transform) and node.config.stateful
        ]
        # State belongs to the steps that keep it: with other steps it is another checkpoint.
        signature = json.dumps(
            sorted([node.name, node.config.model_dump_json(by_alias=True)] for node in steps)
        )
        suffix = f"-{hashlib.sha256(signature.encode()).hexdigest()[:12]}" if steps else ""
        self.stateful = bool(steps)
        self.path = graph.state / "checkpoints" / f"{source}{suffix}"

    def exists(self) -> bool:
        return (self.path / "metadata").exists()

    def end_of(self, batch_id: int) -> int | None:
        """The sequence at which a batch ends, from Spark's own write-ahead log; None if there is none."""
        try:
            lines = (self.path / "offsets" / str(batch_id)).read_text().splitlines()
            return int(json.loads(lines[2])["sequence"])
        except FileNotFoundError:
            return None
        except (ValueError, IndexError, KeyError, TypeError) as error:
            raise EngineError(
                f"the checkpoint {self.path} is damaged at batch {batch_id}: {error}"
            ) from error

    def last_batch(self) -> int | None:
        found = [int(path.name) for path in (self.path / "offsets").glob("*") if path.name.isdigit()]
        return max(found, default=None)

    def mend(self) -> None:
        """Put a damaged checkpoint aside; a loss of power can leave its last file torn."""
        if not self.exists():
            if self.path.exists():
                self._set_aside()
            return
        try:
            json.loads((self.path / "metadata").read_text())
            last = self.last_batch()
            if last is not None:
                self.end_of(last)
        except (ValueError, EngineError) as error:
            if self.stateful:
                raise EngineError(
                    f"{error}; it holds state and cannot be made anew. Restore it, or remove it to begin "
                    "with empty state: no event is lost, but what the state held is"
                ) from error
            logger.warning("%s; it is put aside and made anew from the ledger", error)
            self._set_aside()

    def _set_aside(self) -> None:
        self.path.rename(self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}"))
