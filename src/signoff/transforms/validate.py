"""`validate`: rules an event must keep; one that does not is a dead letter that names every rule it breaks.

A rule whose condition is null is broken: nobody can say that it holds. With `invalid: output` such events
leave through `<name>.invalid` instead, with the names of the broken rules in a column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pyspark.sql import functions as F  # noqa: N812

from signoff.pipeline.model import NAME_PATTERN, Config
from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.frame import View


class Rule(Config):
    """A condition, and what to say of an event for which it does not hold."""

    where: str
    """Spark SQL condition that must be true."""
    reason: Annotated[str, Field(min_length=1)] | None = None
    """What is said; null: the name of the rule and its condition."""


class ValidateConfig(Transform):
    summary: ClassVar[str] = "Check events against rules; what breaks one is a dead letter, or leaves apart."
    example: ClassVar[str] = """\
rules:
  positive: {where: price > 0, reason: the price must be positive}
  known_country: country IN ('AT', 'CH', 'DE')
"""
    type: Literal["validate"] = "validate"
    rules: dict[Annotated[str, Field(pattern=NAME_PATTERN)], str | Rule] = Field(min_length=1)
    """Name to condition, or to `where` and `reason`. A condition that is null counts as broken."""
    invalid: Literal["error", "output"] = "error"
    """`error`: `on_error` applies, with the reasons of all broken rules. `output`: such events leave through
    `<name>.invalid`."""
    broken_into: str = "broken_rules"
    """With `invalid: output`: column with the names of the broken rules there, ARRAY<STRING>."""

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("invalid",) if self.invalid == "output" else ()

    @property
    def has_main_output(self) -> bool:
        return True

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        frame = view.frame
        rules = {
            name: rule if isinstance(rule, Rule) else Rule(where=rule) for name, rule in self.rules.items()
        }
        conditions = {name: F.coalesce(F.expr(rule.where), F.lit(False)) for name, rule in rules.items()}
        whole, holds = frame.attempt(step.name, view, conditions, self.on_error)
        names = {name: F.when(~F.col(column), F.lit(name)) for name, column in holds.items()}
        broken = F.array_compact(F.array(*names.values()))
        if self.invalid == "error":
            said = [
                F.when(~F.col(column), F.lit(rules[name].reason or f"{name}: not {rules[name].where}"))
                for name, column in holds.items()
            ]
            reasons = F.concat_ws("; ", *said)
            error = frame.compute(whole, {"error": F.when(reasons != F.lit(""), reasons)})["error"]
            frame.add_error(step.name, error, self.on_error)
            alive = frame.compute(whole, {"alive": F.col(error).isNull()})["alive"]
            return {None: View(frame, alive, view.columns)}
        if self.broken_into in view.columns:
            message = f'there is a column "{self.broken_into}" already'
            raise FieldError("broken_into", "duplicate-column", message, "give it another name")
        found = frame.compute(whole, {"broken": broken})["broken"]
        size = F.size(F.col(found))
        sides = frame.compute(whole, {"valid": size == F.lit(0), "invalid": size > F.lit(0)})
        return {
            None: View(frame, sides["valid"], view.columns),
            "invalid": View(frame, sides["invalid"], {**view.columns, self.broken_into: found}),
        }
