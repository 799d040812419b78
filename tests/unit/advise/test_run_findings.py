"""A slow rank is told by what it does besides training, if that is why it is slow."""

from __future__ import annotations

from stepscope.advise.finding import Evidence, Finding
from stepscope.advise.run_findings import made_slow_by, of_its_rank, reason_of, with_reason


def finding(cause: str, rank: int, gain: int, added: int | None = None) -> Finding:
    said = (Evidence(text=cause),)
    return Finding(cause=cause, title=cause, evidence=said, remedy="", gain_ns=gain, ranks=(rank,), added_ns=added)


def test_a_checkpoint_of_one_rank_is_why_it_is_slow() -> None:
    slow, saves = finding("host-bound-rank", 0, 12, added=13), finding("frequent-checkpoint", 0, 11)
    assert made_slow_by(slow, [saves]) is saves
    assert made_slow_by(slow, [finding("frequent-checkpoint", 1, 11)]) is None
    assert made_slow_by(slow, [finding("frequent-checkpoint", 0, 5)]) is None
    assert made_slow_by(finding("small-collectives", 0, 12), [saves]) is None


def test_what_one_rank_does_says_which() -> None:
    saves = finding("frequent-checkpoint", 0, 11)
    assert of_its_rank(saves).title == "Rank 0: frequent-checkpoint"
    of_all = Finding(cause="sync", title="sync", evidence=(), remedy="", ranks=())
    assert of_its_rank(of_all) is of_all


def test_a_rank_that_waits_for_its_data_says_what_its_own_samples_show() -> None:
    slow, own = finding("data-wait-rank", 1, 10, added=12), finding("data-loader-slow", 1, 9)
    elsewhere, small, other = (finding("data-loader-slow", 0, 9), finding("data-loader-slow", 1, 5),
                               finding("python-in-step", 1, 9))  # fmt: skip
    assert reason_of(slow, [elsewhere, small, other]) is None
    assert with_reason(slow, None) is slow
    told = with_reason(slow, reason_of(slow, [elsewhere, own]))
    assert [one.text for one in told.evidence] == ["data-wait-rank", "data-loader-slow"]
    assert (told.cause, told.gain_ns, told.evidence[1].rank) == ("data-wait-rank", 10, 1)
    assert reason_of(finding("host-bound-rank", 1, 10, added=12), [other]) is other
