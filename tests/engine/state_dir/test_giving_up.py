"""Giving up what is in a buffer: whoever waited for it is told. Without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyroaring import BitMap64

from signoff.engine.replay.batch_name import new_replay, replay_name
from signoff.engine.split.boundaries import buffer_place
from signoff.engine.state_dir.giving_up import reset
from signoff.ledger import DeadLetter, DeadLetters, Ledger, Outcome, RowOutcome, RowRef
from signoff.ledger.batch_state import Done
from signoff.link.handover import HandoverSink
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import BufferSettings
from signoff.pipeline.settings import Settings
from signoff.sinks.contract import Part
from tests.engine.simulated_run import ToySinkConfig, ToySource, ToyStep


def test_a_letter_whose_replayed_row_is_in_a_buffer_that_is_reset_is_one_of_the_sink(tmp_path: Path) -> None:
    graph = Graph(
        Settings(name="w", state="state"), "w.yaml", tmp_path,
        {
            "incoming": Node("incoming", "source", ToySource()),
            "step": Node("step", "transform", ToyStep(), (Port("incoming"),)),
            "hook": Node("hook", "sink", ToySinkConfig(buffer=BufferSettings()), (Port("step"),)),
        },
    )  # fmt: skip
    graph.state.mkdir(parents=True)
    with (
        Ledger(graph.state / "ledger.db") as ledger,
        DeadLetters(graph.state / "dead_letters.db") as letters,
    ):
        dead = [RowOutcome(RowRef(n), "step", Outcome.DEAD_LETTERED, "no") for n in (0, 1)]
        ledger.open_batch("incoming", 0, 2, ["hook"])
        ledger.record("incoming", 0, 2, delivered=BitMap64(), outcomes=dead,
                      sinks={"hook": Done()}, owed=BitMap64())  # fmt: skip
        here, elsewhere = (DeadLetter(f"incoming/{n}", "step", "no", b"{}") for n in (0, 1))
        letters.add([here, elsewhere])
        letters.request_replay([here, elsewhere])
        batch = new_replay("incoming", [here])
        letters.claim([here], replay_name(batch))
        sink = HandoverSink("hook", buffer_place(graph, "hook.buffer"), 1 << 20, "block")
        sink.prepare()
        writer = sink.open(Part(batch, 0, 0))
        writer.write(pa.record_batch({"event_id": [here.event_id], "_origin": pa.array([0], pa.int64())}))
        part = writer.close()
        assert part is not None
        sink.commit(batch, [part])
        sink.release()
        letters.hand_on([here], ("hook",), "")
        letters.hand_on([elsewhere], ("other",), "")
        assert reset(graph, ledger, "hook.buffer").events == 1
        assert letters.get(*here.key)[0].status == "replayed"
        (again,) = letters.list(statuses=("stored",))
        assert (again.event_id, again.stage, again.payload) == (here.event_id, "hook", b"{}")
        assert again.reason == 'given up: the buffer "hook" was reset'
        assert letters.get(*elsewhere.key)[0].status == "handed", "its row is in another log"
        assert ledger.account("incoming", 2).dead_lettered == 2
        assert letters.request_replay([again]) == 1
        assert new_replay("incoming", [again]) != batch
