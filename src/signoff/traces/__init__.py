"""Traces: what happened to some of the events, from receipt to acknowledgement, as spans of OpenTelemetry.

    intake    receive ─────────────────────────────────────────────► settle (ack, nack)
    engine          └─► process, of a batch ─┬─► send, to a sink        children of the event's `receive`
                                             └─► send, to another ─► (what is sent bears the context on)

The intake and the engine choose the same events and give the same ids without a word to each other: both
follow from the log alone (`chosen`, `ids`), so they are the same after a crash, too. An event that brings a
context of its own (`traceparent`) continues that trace; what a sink sends bears the id of its span.

Invariants:
- A span holds names of the pipeline, numbers and ids of events; no payload, reason, header or key.
- Nobody waits for a collector: spans are put into a queue of a bounded length, and dropped, and counted, when
  that is full (`export`).
- Off, nothing of this is imported, and nothing is asked of an event.
"""
