"""Findings at the lines of the program: ``file:line: message``, SARIF, and annotations of GitHub's workflows.

A finding that names no line of the program has no place: it is told without one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import stepscope
from stepscope.advise.finding import Confidence, Finding
from stepscope.report.safe_text import printable

_SARIF = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_SOURCE = re.compile(r"(?P<file>.+):(?P<line>[1-9]\d*)")


class _FindingPlace(NamedTuple):
    """A line of the program; the file relative to the working directory where it lies below that."""

    file: str
    line: int


def lines(findings: Sequence[Finding]) -> str:
    """Return a line of text for each finding, as compilers write them: ``file:line: message [cause]``."""
    return "".join(f"{line}\n" for line in _lines(findings))


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        place = _place(finding)
        where = "stepscope" if place is None else f"{printable(place.file)}:{place.line}"
        yield f"{where}: {message(finding)} [{finding.cause}]"


def message(finding: Finding) -> str:
    """Return what a finding says and what to change, on one line."""
    return printable(" ".join(f"{_sentence(finding.title)} {finding.remedy}".split()))


def _sentence(title: str) -> str:
    return title if title.endswith((".", "!", "?")) else f"{title}."


def github(findings: Sequence[Finding]) -> str:
    """Return a workflow command of GitHub for each finding: a warning at its line."""
    return "".join(f"{command}\n" for command in map(_command, findings))


def _command(finding: Finding) -> str:
    place, level = _place(finding), "notice" if _is_note(finding) else "warning"
    facts = {} if place is None else {"file": place.file, "line": str(place.line)}
    facts["title"] = f"stepscope: {finding.cause}"
    named = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in facts.items())
    return f"::{level} {named}::{_escaped(message(finding))}"


def _escaped(text: str, also: str = "") -> str:
    """Return text as workflow commands take it: the characters that end a part are written ``%XX``."""
    return "".join(f"%{ord(one):02X}" if one in f"%\r\n{also}" else one for one in text)


def sarif(findings: Sequence[Finding]) -> str:
    """Return a SARIF 2.1.0 log with a rule for each cause and a result for each finding."""
    causes = list(dict.fromkeys(finding.cause for finding in findings))
    driver = {
        "name": "stepscope",
        "semanticVersion": stepscope.__version__,
        "rules": [{"id": cause, "name": _pascal(cause)} for cause in causes],
    }
    results = [_result(finding, causes.index(finding.cause)) for finding in findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return f"{json.dumps({'$schema': _SARIF, 'version': '2.1.0', 'runs': [run]}, indent=2)}\n"


def _result(finding: Finding, rule: int) -> dict[str, Any]:
    facts = {
        "gain_ns": finding.gain_ns,
        "step_ns": finding.step_ns,
        "confidence": finding.confidence.value,
        "evidence": [printable(one.text) for one in finding.evidence],
    }
    made: dict[str, Any] = {
        "ruleId": finding.cause,
        "ruleIndex": rule,
        "level": "note" if _is_note(finding) else "warning",
        "message": {"text": message(finding)},
        "properties": {name: value for name, value in facts.items() if value is not None},
    }
    if (place := _place(finding)) is not None:
        made["locations"] = [
            {"physicalLocation": {"artifactLocation": _artifact(place.file), "region": {"startLine": place.line}}}
        ]
    return made


def _artifact(file: str) -> dict[str, str]:
    if Path(file).is_absolute():
        return {"uri": Path(file).as_uri()}
    return {"uri": quote(file), "uriBaseId": "%SRCROOT%"}


def _pascal(cause: str) -> str:
    return "".join(word.capitalize() for word in cause.split("-"))


def _is_note(finding: Finding) -> bool:
    return finding.confidence is Confidence.POSSIBLE


def _place(finding: Finding) -> _FindingPlace | None:
    """Return the first line of the program that the evidence names; None without one, or without a file."""
    for evidence in finding.evidence:
        found = _SOURCE.fullmatch(evidence.source or "")
        if found is not None and not found["file"].startswith("<"):  # code of a prompt or a string has no file
            path = Path(found["file"])
            near = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            return _FindingPlace(near.as_posix(), int(found["line"]))
    return None


#: What ``--findings`` writes besides the text for a terminal, by name.
ANNOTATIONS: dict[str, Callable[[Sequence[Finding]], str]] = {"lines": lines, "sarif": sarif, "github": github}
