"""A source that gets another type does not go on from a place that means nothing to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from signoff.intake.source_type_notes import NOTE, own_place


def test_a_source_goes_on_from_its_place(tmp_path: Path) -> None:
    assert own_place(tmp_path, "files", 0, (None, None)) == (None, None)
    assert own_place(tmp_path, "files", 7, (3, 120)) == (3, 120)


def test_another_type_begins_at_its_own_beginning_until_it_has_an_event_of_its_own(tmp_path: Path) -> None:
    own_place(tmp_path, "http", 7, (500, 2))
    assert own_place(tmp_path, "files", 7, (500, 2)) == (None, None)
    assert own_place(tmp_path, "files", 7, (500, 2)) == (None, None), "also after a kill"
    assert own_place(tmp_path, "files", 9, (1, 40)) == (1, 40)
    assert own_place(tmp_path, "http", 9, (1, 40)) == (None, None)


@pytest.mark.parametrize("content", [None, "", "[]", '{"type": "files"}'])
def test_a_state_directory_without_a_note_goes_on_as_it_was(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / NOTE).write_text(content)
    assert own_place(tmp_path, "files", 7, (3, 120)) == (3, 120)
