"""Random numbers that are computed from a number, not drawn one after the other.

What it keeps: the hash of n depends on the seed, the salt and n alone, so that any part of a made-up
stream can be computed by itself, in any order, and always comes out the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

GOLDEN = np.uint64(0x9E3779B97F4A7C15)

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Shares = npt.NDArray[np.float64]


def hashes(numbers: Numbers, seed: int, salt: int) -> Hashes:
    """SplitMix64 of the numbers. Streams of different seeds or salts have nothing to do with each other."""
    with np.errstate(over="ignore"):
        begin = scramble(scramble(np.array([seed + 1], np.uint64) * GOLDEN) + np.uint64(salt) * GOLDEN)
        return scramble((numbers.astype(np.uint64) + begin) * GOLDEN)


def scramble(values: Hashes) -> Hashes:
    """The last three steps of SplitMix64: every bit depends on every bit."""
    with np.errstate(over="ignore"):
        mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


def shares(values: Hashes) -> Shares:
    """Hashes as numbers from 0 up to, not including, 1."""
    return (values >> np.uint64(11)).astype(np.float64) / 2**53


def remainders(values: Hashes, divisor: int) -> Numbers:
    """Hashes as whole numbers from 0 up to, not including, the divisor."""
    return (values % np.uint64(divisor)).astype(np.int64)
