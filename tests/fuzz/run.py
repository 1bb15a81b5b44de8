"""`make fuzz`: feed every target, and say which input it was when one fails.

make fuzz ARGS="--count 1000000 --seed 7"        # what is fast gets more of them
make fuzz ARGS="--only csv:7:123"                # one input once more
"""

from __future__ import annotations

import argparse
import importlib
import time
import traceback
from collections.abc import Sequence

from tests.fuzz.targets import TARGETS, Target, one

MODULES = ("pipelines", "files", "requests", "amqp", "parsers", "commands")
"""Modules of this package with targets."""
ROUNDS = 20
SLOW_S = 10.0
"""One input that takes longer does not end. In processor time: others may use the machine, too."""


def load_targets() -> dict[str, Target]:
    for module in MODULES:
        importlib.import_module(f"tests.fuzz.{module}")
    return TARGETS


def feed(name: str, count: int, seed: int, first: int = 0) -> list[str]:
    """Feed one target; returns the inputs that failed."""
    failed = []
    for number in range(first, first + count):
        began = time.process_time()
        try:
            one(name, number, seed)
        except Exception:  # noqa: BLE001 - that is what is looked for
            failed.append(f"{name}:{seed}:{number}")
            print(f"FAILED {failed[-1]}\n{traceback.format_exc()}", flush=True)
        if time.process_time() - began > SLOW_S:
            failed.append(f"{name}:{seed}:{number} took {time.process_time() - began:.0f} s")
            print(f"FAILED {failed[-1]}", flush=True)
    return failed


def feed_all(chosen: Sequence[Target], total: int, seed: int) -> list[str]:
    """In rounds, so that a run that is stopped has tried something of everything."""
    shares = sum(target.weight for target in chosen)
    fed, seconds = dict.fromkeys(chosen, 0), dict.fromkeys(chosen, 0.0)
    failed: list[str] = []
    for number in range(1, ROUNDS + 1):
        for target in chosen:
            upto = max(1, total * target.weight * number // (shares * ROUNDS))
            began = time.monotonic()
            failed += feed(target.name, upto - fed[target], seed, fed[target])
            fed[target], seconds[target] = upto, seconds[target] + time.monotonic() - began
        print(f"{number} of {ROUNDS}: {sum(fed.values()):,} inputs, {len(failed)} failed", flush=True)
    for target in chosen:
        print(f"{target.name:20} {fed[target]:9,} inputs {seconds[target]:7.1f} s")
    return failed


def main() -> int:
    """Feed all, or one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", help="only these (again and again)")
    parser.add_argument("--only", help="one input, name:seed:number")
    options = parser.parse_args()
    targets = load_targets()
    if options.only:
        name, seed, number = options.only.split(":")
        one(name, int(number), int(seed))
        return 0
    chosen = [targets[name] for name in options.target or targets]
    failed = feed_all(chosen, options.count, options.seed)
    print(f"{len(failed)} failed{': ' if failed else ''}{', '.join(failed[:20])}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
