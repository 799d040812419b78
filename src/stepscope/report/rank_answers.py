"""What is written of a rank: its results, and its findings as one more nested document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from stepscope.advise.rank_findings import rank_findings
from stepscope.analyse.results import Results, kinds
from stepscope.report.protocol import Result
from stepscope.run import RankRun

#: Name of the nested document with the findings of a rank.
_FINDINGS = "findings"


class RankAnswers(Mapping[str, Result]):
    """The results of a rank and its findings by name; each is computed when it is first read.

    Args:
        rank: The rank.
        results: Its results; of a rank of a job, those that know the other ranks.
        deep: Whether results that look more closely are among them.
    """

    def __init__(self, rank: RankRun, results: Results | None = None, *, deep: bool = True) -> None:
        self._rank = rank
        self._deep = deep
        self._results = rank.results if results is None else results

    def __getitem__(self, name: str) -> Result:
        if name == _FINDINGS:
            return list(msgspec.to_builtins(rank_findings(self._rank)))
        return self._results[name]

    def __contains__(self, name: object) -> bool:
        return name == _FINDINGS or name in self._results

    def __iter__(self) -> Iterator[str]:
        yield from (name for name, kind in kinds().items() if (self._deep or not kind.deep) and name in self._results)
        yield _FINDINGS

    def __len__(self) -> int:
        return sum(1 for _ in self)
