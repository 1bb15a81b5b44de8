"""Generated inputs for everything that reads what others wrote. `make fuzz` runs them by the million.

A target is one function that takes a `random.Random`, makes an input of it, and raises when what reads the
input breaks its promise. To add one: write it in a module of this package, put `@target("name")` on it,
and name the module in `MODULES` of `run`. Each input has a seed of its own (`name:number`), so one that
fails is repeated with `make fuzz ARGS="--only name:number"`, and kept in `test_fuzz.FAILED`.
"""
