"""Tags and sequence numbers on one channel, against a broker that is as strict as the real one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from signoff.sources.rabbitmq.deliveries import Acks, Deliveries


class StrictBroker:
    """One channel's side of the broker: an unknown tag closes a channel, and here fails the test."""

    def __init__(self) -> None:
        self.unacknowledged: dict[int, int] = {}
        self.acknowledged: set[int] = set()
        self.returned: set[int] = set()

    def deliver(self, tag: int, sequence: int) -> None:
        self.unacknowledged[tag] = sequence

    def tell(self, acks: Acks) -> None:
        if acks.upto is not None:
            assert acks.upto in self.unacknowledged
            for tag in [tag for tag in self.unacknowledged if tag <= acks.upto]:
                self.acknowledged.add(self.unacknowledged.pop(tag))
        for tag in acks.singly:
            self.acknowledged.add(self.unacknowledged.pop(tag))

    def take_back(self, tags: dict[int, int]) -> None:
        for sequence, tag in tags.items():
            assert self.unacknowledged.pop(tag) == sequence
            self.returned.add(sequence)


def handed_out(count: int, sequence: int = 100) -> Deliveries:
    deliveries = Deliveries()
    deliveries.hand_out(1, sequence, count)
    return deliveries


def test_a_range_is_acknowledged_with_one_frame() -> None:
    assert handed_out(1000).acknowledge(BitMap64(range(100, 1100))) == Acks(1000, [])


def test_what_lies_above_an_owed_event_is_acknowledged_singly() -> None:
    deliveries = handed_out(5)
    assert deliveries.acknowledge(BitMap64([100, 101, 103, 104])) == Acks(2, [4, 5])
    assert deliveries.owed == 1
    assert deliveries.acknowledge(BitMap64([102])) == Acks(3, [])


def test_nothing_that_was_not_handed_out_is_acknowledged() -> None:
    assert handed_out(3).acknowledge(BitMap64(range(50, 102))) == Acks(2, [])
    assert handed_out(3).acknowledge(BitMap64([7, 900])) == Acks(None, [])


def test_a_message_that_came_again_is_acknowledged_by_its_new_tag() -> None:
    deliveries = Deliveries()
    deliveries.bind(1, 7)
    deliveries.hand_out(2, 100, 2)
    assert deliveries.acknowledge(BitMap64([100, 101])) == Acks(None, [2, 3])
    assert deliveries.acknowledge(BitMap64([7])) == Acks(1, [])


def test_a_refused_message_does_not_stand_in_the_way_of_its_neighbours() -> None:
    deliveries = handed_out(3)
    assert deliveries.holding([99, 101, 103]) == BitMap64([101])
    assert deliveries.take_back([99, 101, 103]) == {101: 2}
    assert deliveries.acknowledge(BitMap64([100, 102])) == Acks(3, [])


def test_an_answer_is_given_once() -> None:
    deliveries = handed_out(3)
    deliveries.acknowledge(BitMap64([101]))
    assert deliveries.acknowledge(BitMap64([101])) == Acks(None, [])
    assert deliveries.take_back([101]) == {}


@given(st.data())
def test_exactly_what_is_settled_is_answered_whatever_the_order(data: st.DataObject) -> None:
    deliveries, broker = Deliveries(), StrictBroker()
    next_tag, next_sequence, old = 1, 1000, list(range(50))
    settled: set[int] = set()
    refused: set[int] = set()
    for _ in range(data.draw(st.integers(1, 15))):
        delivered = sorted(set(broker.unacknowledged.values()))
        match data.draw(st.sampled_from(["new", "again", "settle", "refuse"])):
            case "new":
                count = data.draw(st.integers(1, 6))
                deliveries.hand_out(next_tag, next_sequence, count)
                for place in range(count):
                    broker.deliver(next_tag + place, next_sequence + place)
                next_tag, next_sequence = next_tag + count, next_sequence + count
            case "again" if old:
                sequence = old.pop(data.draw(st.integers(0, len(old) - 1)))
                deliveries.bind(next_tag, sequence)
                broker.deliver(next_tag, sequence)
                next_tag += 1
            case "settle" if delivered:
                chosen = data.draw(st.sets(st.sampled_from(delivered), min_size=1))
                settled |= chosen
                broker.tell(deliveries.acknowledge(BitMap64(chosen | {5_000_000})))
            case "refuse" if delivered:
                chosen = data.draw(st.sets(st.sampled_from(delivered), min_size=1))
                refused |= chosen
                broker.take_back(deliveries.take_back(chosen))
        assert broker.acknowledged == settled
        assert broker.returned == refused
        assert deliveries.owed == len(broker.unacknowledged)
