"""The known set: message number n is the same whenever it is made, and can be told from every other.

One in a thousand is malformed, in one of three ways: its place is among the dead letters.
"""

from __future__ import annotations

import json

QUEUES = ("quorum", "classic")
"""Named after their types; a message's number says which one it goes to."""
SCHEMA = "n BIGINT, text STRING"
_MALFORMED_EVERY = 1000


def message_id(number: int) -> str:
    return f"m{number}"


def number_of(message: str | None) -> int | None:
    """The number in a message id; None if it is not one of ours."""
    if message is None or message[:1] != "m" or not message[1:].isdigit():
        return None
    return int(message[1:])


def queue(number: int) -> str:
    return QUEUES[number % len(QUEUES)]


def text(number: int) -> str:
    return f"reading {number} of station {number % 97}, " + "x" * (number % 120)


def is_malformed(number: int) -> bool:
    return number % _MALFORMED_EVERY == _MALFORMED_EVERY // 2


def payload(number: int) -> str:
    if not is_malformed(number):
        return json.dumps({"n": number, "text": text(number)})
    ways = (
        f'{{"n": {number}, "text": "cut o',
        f"message {number} is not JSON",
        f'{{"n": "number {number}", "text": "n is no number"}}',
    )
    return ways[number // _MALFORMED_EVERY % len(ways)]
