"""`docs/promises.md` says what the tests say. No Spark is needed for that."""

from __future__ import annotations

from tests.promises.table import PROMISES, ROOT, marked, table


def test_the_document_is_what_the_tests_say():
    assert (ROOT / "docs" / "promises.md").read_text() == table(), "run `make docs`"


def test_every_case_that_a_test_is_marked_with_is_a_promise():
    known = {case for promises in PROMISES.values() for case in promises}
    assert {case for case, *_ in marked()} <= known
