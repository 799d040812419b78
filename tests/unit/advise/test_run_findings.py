"""A slow rank is told by what it does besides training, if that is why it is slow."""

from __future__ import annotations

from stepscope.advise.finding import Evidence, Finding
from stepscope.advise.run_findings import made_slow_by


def finding(cause: str, rank: int, gain: int, added: int | None = None) -> Finding:
    said = (Evidence(text=cause),)
    return Finding(cause=cause, title=cause, evidence=said, remedy="", gain_ns=gain, ranks=(rank,), added_ns=added)


def test_a_checkpoint_of_one_rank_is_why_it_is_slow() -> None:
    slow, saves = finding("host-bound-rank", 0, 12, added=13), finding("frequent-checkpoint", 0, 11)
    assert made_slow_by(slow, [saves]) is saves
    assert made_slow_by(slow, [finding("frequent-checkpoint", 1, 11)]) is None
    assert made_slow_by(slow, [finding("frequent-checkpoint", 0, 5)]) is None
    assert made_slow_by(finding("small-collectives", 0, 12), [saves]) is None
