"""Of claims on the same time, the deepest stays; nothing that explains other time is lost."""

from __future__ import annotations

from stepscope.advise.claims import Claim, Depth, merged
from stepscope.advise.finding import Evidence, Finding


def claim(cause: str, depth: Depth, gain: int | None, limits: str = "", **explains: float) -> Claim:
    finding = Finding(cause=cause, title=cause, gain_ns=gain, evidence=(Evidence(text="1"),), remedy="Change it.")
    return Claim(finding, depth, explains, limits)


def causes(*claims: Claim) -> list[str]:
    return [finding.cause for finding in merged(claims)]


def test_the_deeper_cause_explains_the_symptom() -> None:
    symptom = claim("symptom", Depth.SYMPTOM, 100, idle=100.0)
    cause = claim("cause", Depth.CAUSE, 60, idle=60.0)
    assert causes(symptom, cause) == ["cause"]
    assert causes(cause, symptom) == ["cause"]


def test_a_symptom_that_is_mostly_unexplained_stays_and_the_larger_gain_comes_first() -> None:
    symptom = claim("symptom", Depth.SYMPTOM, 100, idle=100.0)
    cause = claim("cause", Depth.CAUSE, 40, idle=40.0)
    assert causes(cause, symptom) == ["symptom", "cause"]


def test_claims_on_different_time_all_stay() -> None:
    found = [claim("a", Depth.CAUSE, 1, x=5.0), claim("b", Depth.PLACE, 2, y=5.0), claim("c", Depth.SYMPTOM, None)]
    assert causes(*found) == ["b", "a", "c"]


def test_of_two_causes_of_the_same_time_the_larger_stays() -> None:
    assert causes(claim("small", Depth.CAUSE, 30, x=30.0), claim("large", Depth.CAUSE, 50, x=50.0)) == ["large"]


def test_beside_what_limits_the_training_thread_nothing_has_a_gain() -> None:
    loader = claim("loader", Depth.CAUSE, 20, "its workers", wait=20.0)
    sleeps = claim("sleeps", Depth.CAUSE, 40, lines=40.0)
    first, second = merged([sleeps, loader])
    assert (first.cause, first.gain_ns, second.cause, second.gain_ns) == ("loader", 20, "sleeps", None)
    assert second.evidence[0].text == "by itself it saves nothing: the training then waits longer for its workers"
