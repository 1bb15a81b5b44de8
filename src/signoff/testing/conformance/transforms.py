"""What every stateless transform must do, by the contract: asked of an example of it, in a pipeline that is
run.

Two runs answer the questions. In the first all rows come in one batch, those that are to fail among them, and
one in which every column is null. In the second each row is a batch of its own, as it may be after a crash:
what comes out of it, and under which ids, must be the same.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from signoff.builder import Pipeline
from signoff.pipeline.model import TransformConfig
from signoff.testing.conformance.described import describes_itself
from signoff.testing.conformance.rows import comparable
from signoff.testing.running import Letter, Result, run_pipeline

Row = Mapping[str, Any]
_STEP = "step"


@dataclass
class TransformExample:
    """A transform with its fields, rows that it is given, and what is to become of them."""

    config: TransformConfig
    schema: str
    """The columns of its input: `"id BIGINT, name STRING"`."""
    rows: Sequence[Row]
    """Rows it takes, as they are written in JSON; a column that is not named is null."""
    expected: Sequence[Row]
    """What comes out of them, all columns, in any order."""
    failing: Sequence[Row] = field(default=())
    """Rows for which it fails: each is to be a dead letter, and to concern no other."""

    @property
    def given(self) -> list[str]:
        """The payloads: the failing rows stand among the others, the one without any value is last."""
        half = len(self.rows) // 2
        return [json.dumps(row) for row in (*self.rows[:half], *self.failing, *self.rows[half:], {})]

    @cached_property
    def together(self) -> Result:
        return run_pipeline(self._pipeline(), {"incoming": self.given})

    @cached_property
    def apart(self) -> Result:
        return run_pipeline(self._pipeline(), [{"incoming": [payload]} for payload in self.given])

    def outcome(self, result: Result) -> dict[str, Row]:
        """The rows that have come out, by their ids."""
        return dict(zip(result.ids["out"], result.rows["out"], strict=True))

    def without_the_last(self, result: Result) -> list[Row]:
        last = f"incoming/{len(self.given) - 1}"
        found = self.outcome(result).items()
        return [row for name, row in found if name != last and not name.startswith(f"{last}/")]

    def letters(self, result: Result) -> list[Letter]:
        """Dead letters, but for that of the row without any value, which may be one."""
        return [letter for letter in result.letters if letter.payload != b"{}"]

    def _pipeline(self) -> Pipeline:
        pipeline = Pipeline("conformance")
        pipeline.source("incoming", "generate", template="sequence", count=0)
        pipeline.transform("given", "parse_json", input="incoming", schema=self.schema)
        pipeline.transform(_STEP, self.config, input="given")
        pipeline.sink("out", "console", input=_STEP)
        return pipeline


class TransformConformance:
    """Subclass it as `TestSomething`, and give it a fixture `example` (of scope class) that makes a
    TransformExample."""

    def test_the_type_describes_itself(self, example: TransformExample) -> None:
        describes_itself(type(example.config), "transform")

    def test_config_survives_the_way_to_an_executor(self, example: TransformExample) -> None:
        assert pickle.loads(pickle.dumps(example.config)) == example.config

    def test_the_expected_rows_come_out_and_no_others(self, example: TransformExample) -> None:
        assert _sorted(example.without_the_last(example.together)) == _sorted(example.expected)

    def test_a_row_it_fails_for_is_a_dead_letter_alone(self, example: TransformExample) -> None:
        found = [(letter.stage, letter.payload.decode()) for letter in example.letters(example.together)]
        assert sorted(found) == sorted((_STEP, json.dumps(row)) for row in example.failing)
        assert all(letter.reason for letter in example.together.letters)

    def test_every_event_is_accounted_for(self, example: TransformExample) -> None:
        for result in (example.together, example.apart):
            account = result.account
            assert result.gave_up == "" and account["in_flight"] == 0
            assert account["received"] == len(example.given)
            ended = ("delivered", "dropped", "dead_lettered", "refused")
            assert account["received"] == sum(account[name] for name in ended)

    def test_the_same_rows_have_the_same_ids_in_whatever_batch_they_come(
        self, example: TransformExample
    ) -> None:
        together, apart = (example.outcome(result) for result in (example.together, example.apart))
        assert comparable(together) == comparable(apart)
        assert len(together) == len(example.together.rows["out"]), "two rows have the same id"

    def test_what_fails_does_not_depend_on_the_batch(self, example: TransformExample) -> None:
        together, apart = (
            sorted((letter.event_id, letter.stage) for letter in result.letters)
            for result in (example.together, example.apart)
        )
        assert together == apart


def _sorted(rows: Sequence[Row]) -> list[str]:
    return sorted(repr(comparable(dict(sorted(row.items())))) for row in rows)
