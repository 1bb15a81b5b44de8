"""A pipeline that would post to itself is refused, whatever the address is called."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from signoff.catalog import default
from signoff.errors import PipelineError
from signoff.pipeline.address_conflicts import reaches
from signoff.pipeline.load import load


@pytest.mark.parametrize(
    ("to", "listens", "same"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("localhost", "127.0.0.1", True),
        ("LOCALHOST.", "127.0.0.1", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("::1", "localhost", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("127.9.9.9", "0.0.0.0", True),
        ("localhost", "0.0.0.0", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        (socket.gethostname(), "0.0.0.0", True),
        ("127.0.0.2", "127.0.0.1", False),
        ("203.0.113.7", "0.0.0.0", False),
        ("example.com", "0.0.0.0", False),
        ("::1", "127.0.0.1", False),
    ],
)
def test_addresses_are_compared_by_what_they_are(to: str, listens: str, same: bool) -> None:
    assert reaches((to, 8080), (listens, 8080)) is same
    assert not reaches((to, 8081), (listens, 8080))
    assert not reaches((to, 0), (listens, 0))


@pytest.mark.parametrize(
    ("node", "line"),
    [
        ("  k: {type: http, input: s, url: 'http://localhost:8123/x'}", 4),
        ("  k: {type: http, input: s, url: 'http://user:pw@127.0.0.1:8123/'}", 4),
        ("  k: {type: console, input: e}\ntransforms:\n  e: {type: enrich, input: s, into: a, "
         "url: 'http://0.0.0.0:8123/{payload}'}", 6),
    ],
)  # fmt: skip
def test_a_node_that_sends_to_its_own_source_is_refused(tmp_path: Path, node: str, line: int) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(f"name: t\nsources: {{s: {{type: http, port: 8123}}}}\nsinks:\n{node}\n")
    with pytest.raises(PipelineError) as raised:
        load(path, default())
    (problem,) = raised.value.problems
    assert (problem.code, problem.line) == ("own-output", line)
    assert 'where source "s" listens' in problem.message and "pw" not in str(problem)
    path.write_text(path.read_text().replace("port: 8123", "port: 8124"))
    load(path, default())
