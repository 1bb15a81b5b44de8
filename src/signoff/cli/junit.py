"""The results of `signoff test` as JUnit XML, which every CI server reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, indent, tostring

if TYPE_CHECKING:
    from signoff.cli.test import Verdict

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(suite: str, verdicts: Sequence[Verdict]) -> str:
    """The text of the file."""
    failed, broken = sum(bool(v.differences) for v in verdicts), sum(bool(v.error) for v in verdicts)
    root = Element("testsuites")
    top = SubElement(root, "testsuite", name=suite, tests=str(len(verdicts)), failures=str(failed))
    top.set("errors", str(broken))
    top.set("time", f"{sum(verdict.seconds for verdict in verdicts):.3f}")
    for verdict in verdicts:
        case = SubElement(top, "testcase", classname=suite, name=_clean(verdict.name))
        case.set("time", f"{verdict.seconds:.3f}")
        file, _, line = verdict.place.rpartition(":")
        case.set("file", file)
        case.set("line", line)
        if verdict.error:
            SubElement(case, "error", message=_clean(verdict.error.splitlines()[0])).text = _clean(
                verdict.error
            )
        elif verdict.differences:
            names = ", ".join(at for at, _ in verdict.differences)
            text = "\n".join(text for _, text in verdict.differences)
            SubElement(case, "failure", message=f"not as expected: {_clean(names)}").text = _clean(text)
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
