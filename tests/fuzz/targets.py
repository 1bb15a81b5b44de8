"""The list of targets, and what they share."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

TARGETS: dict[str, Target] = {}


@dataclass(frozen=True)
class Target:
    """Something that is fed."""

    name: str
    run: Callable[[random.Random], None]
    weight: int
    """Its share of the inputs, compared with others: more for what is fast."""


def target(name: str, weight: int = 1) -> Callable[[Callable[[random.Random], None]], None]:
    """Register a function that makes an input, uses it, and raises if something is wrong."""

    def register(function: Callable[[random.Random], None]) -> None:
        assert name not in TARGETS
        TARGETS[name] = Target(name, function, weight)

    return register


def one(name: str, number: int, seed: int = 0) -> None:
    """Feed one input, the same for the same numbers."""
    TARGETS[name].run(random.Random(f"{name}:{seed}:{number}"))


def mutated(generator: random.Random, data: bytes, most: int = 8) -> bytes:
    """The bytes with some of them changed, doubled, taken out or cut off."""
    edited = bytearray(data)
    for _ in range(generator.randint(1, most)):
        place = generator.randrange(len(edited) + 1)
        match generator.randrange(5):
            case 0 if place < len(edited):
                edited[place] = generator.randrange(256)
            case 1:
                edited[place:place] = generator.choice(ODD)
            case 2:
                del edited[place : place + generator.randint(1, 20)]
            case 3:
                edited[place:place] = edited[place : place + generator.randint(1, 40)]
            case _ if generator.random() < 0.1:
                del edited[place:]
    return bytes(edited)


ODD = (
    b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\r\n", b"\n", b"\t", b'"', b"'", b"\\",
    b"{", b"}", b"[", b"]", b":", b": ", b",", b"- ", b"&a ", b"*a", b"<<: ", b"!!int ", b"!!set ",
    b"!!binary ", b"| ", b"> ", b"# ", b"%", b"@", b"`", b"~", b"null", b"true", b"1e999", b"-0",
    b"9" * 60, b"0x1f", b".nan", b"${", b"${A}", b"${file:/nowhere}", b"\\0", b'"\\0"', b'"\\ud800"',
    b"---\n", b"...\n", b"\xf0\x9f\x92\xa9", b"\xe2\x80\xa8",
)  # fmt: skip
