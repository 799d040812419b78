"""The findings of a rank, and of a run: what makes its steps slow, largest gain first."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from stepscope.advise.claims import Claim, merged
from stepscope.advise.finding import Finding
from stepscope.advise.observed import Observed
from stepscope.advise.rules import RULES
from stepscope.advise.verdict import rank_verdict
from stepscope.extensions import guarded
from stepscope.run import RankRun

#: A finding that saves less of the step is not told: a run does not resolve it.
WORTH = 0.07
#: Sections of a rank's summary that keep them, and the first sentence.
_SECTION, _SENTENCE = "findings", "verdict"

Rule = Callable[[Observed], Iterable[Claim]]


def rank_findings(rank: RankRun) -> list[Finding]:
    """Return the findings of one rank, largest gain first; kept beside its summary. A healthy rank has none."""
    kept = rank.kept_section(_SECTION)
    if kept is not None:
        with suppress(msgspec.ValidationError):  # of another version: made again
            return msgspec.json.decode(kept, type=list[Finding])
    found = found_in(Observed(rank.shown, rank.manifest, rank.results, rank.summary))
    check = f"stepscope compare {shlex.quote(str(rank.directory.path.parent))} NEW"
    found = [msgspec.structs.replace(finding, check=finding.check or check) for finding in found]
    rank.keep_section(_SECTION, msgspec.json.encode(found))
    return found


def rank_sentence(rank: RankRun) -> str:
    """Return the sentence that terminal and page begin with; kept beside the findings."""
    kept = rank.kept_section(_SENTENCE)
    if kept is not None:
        with suppress(msgspec.ValidationError):
            return msgspec.json.decode(kept, type=str)
    said = rank_verdict(rank_findings(rank), rank.summary, rank.results)
    rank.keep_section(_SENTENCE, msgspec.json.encode(said))
    return said


def found_in(observed: Observed) -> list[Finding]:
    """Return what the rules find in one rank. A rule that fails costs its own findings, with a warning."""
    claims: list[Claim] = []
    for rule in (*RULES, *guarded("stepscope.rules")):
        claims += (claim for claim in _claims(rule, observed) if _worth(claim.finding, observed))
    return [_of_step(finding, round(observed.step_ns) or None) for finding in merged(claims)]


def _of_step(finding: Finding, step_ns: int | None) -> Finding:
    """Return a finding that saves no more than the step that it is about, which is this one if it says no other."""
    step = finding.step_ns or step_ns
    names = ("gain_ns", "gain_low_ns", "gain_high_ns") if step else ()
    least = {name: min(gain, step) for name in names if (gain := getattr(finding, name)) is not None}
    return msgspec.structs.replace(finding, step_ns=step, **least)


def _worth(finding: Finding, observed: Observed) -> bool:
    return finding.gain_ns is None or observed.share(finding.gain_ns) >= WORTH


def _claims(rule: Rule, observed: Observed) -> list[Claim]:
    try:
        return list(rule(observed) or ())
    except Exception as error:  # noqa: BLE001 - one rule on unforeseen data must not cost the report
        logging.getLogger("stepscope").warning(
            "stepscope: the rule %s failed: %s: %s; please report it.", rule.__name__, type(error).__name__, error
        )
        return []
