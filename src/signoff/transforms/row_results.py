"""What a step says of a row that it does not pass on, and how a user's function says it.

    failed    it can never be computed: `on_error` applies
    waits     it could not be computed now: it is not settled, and the step is run for it again
    dropped   it is meant to end here: settled, with a reason that is kept

A step that can tell these apart writes them into its error column in front of the reason (`result_text`),
where the pass over the rows reads them (`parse_result`). It declares the column with
`Frame.add_error(…, answers=True)`: what any other column holds is a reason and nothing else, whatever it
begins with.
"""

from __future__ import annotations

from enum import StrEnum

from signoff.pipeline.secrets import excerpt
from signoff.transforms.functions.values import Misfit

_LONGEST = 10_000
"""Characters of a reason that are kept."""


class RowResult(StrEnum):
    FAILED = "f"
    WAITS = "w"
    DROPPED = "d"


def result_text(answer: RowResult, reason: str) -> str:
    """The text for an error column."""
    return f"{answer.value}:{reason}"


def parse_result(text: str) -> tuple[RowResult, str]:
    """What `result_text` was given."""
    answer, _, reason = text.partition(":")
    return RowResult(answer), reason


class Drop(Exception):
    """The event, or this one of several made from it, is meant to end here."""


class Fail(Exception):
    """The event, or this one of several made from it, cannot be computed: never, or not now."""

    def __init__(self, reason: str, transient: bool = False) -> None:
        super().__init__(reason)
        self.transient = transient

    def __reduce__(self) -> tuple[type[Fail], tuple[str, bool]]:
        return Fail, (str(self), self.transient)


def answer_of(error: BaseException) -> str:
    """What an exception of a user's, or what stands for one in the result, says of its event."""
    if isinstance(error, Drop):
        return result_text(RowResult.DROPPED, words_of(error))
    if isinstance(error, Fail):
        return result_text(RowResult.WAITS if error.transient else RowResult.FAILED, words_of(error))
    if isinstance(error, Misfit):
        return result_text(RowResult.FAILED, f"what the function returned does not fit: {words_of(error)}")
    if isinstance(error, SystemExit):
        return result_text(
            RowResult.FAILED, f"the function wants to end its process: SystemExit: {words_of(error)}"
        )
    return result_text(RowResult.FAILED, excerpt(f"{type(error).__name__}: {words_of(error)}", _LONGEST))


def words_of(error: BaseException) -> str:
    """The text of an exception: without secrets, not without end, and there even if it cannot be had."""
    try:
        return excerpt(str(error), _LONGEST)
    except BaseException as worse:  # noqa: BLE001 - any code of the user's may be behind a __str__
        return f"(its text cannot be had: {type(worse).__name__})"


def drop(reason: str) -> Drop:
    """For a function on rows, to be returned or raised: the event ends here on purpose.

    It is settled as dropped; step and reason stand in the ledger. Inside a list that is returned, only
    that one of the list is dropped.
    """
    return Drop(reason)


def fail(reason: str, *, transient: bool = False) -> Fail:
    """For a function on rows, to be raised or returned: the event cannot be computed.

    `transient`: not now. It is not settled, and the function is called again for it after a wait, as
    often as the step's `retry` allows. Otherwise, and then, the step's `on_error` applies.
    """
    return Fail(reason, transient)
