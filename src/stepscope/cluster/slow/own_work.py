"""The work of a rank against the same work of its peers: which operator, kernel or module takes it longer.

A device that is slower takes longer for everything: that factor is taken out first. What an operator takes beyond
it is compared with what it takes on the peers, so a small difference counts where peers agree closely.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.slow.outliers import Floats, Integers, lower_median, too_large
from stepscope.cluster.slow.own_time import QUIET, own_time

#: What identifies the same work on several ranks.
WORK = ("kind", "name", "operator", "module", "phase")
#: How much the times of one operator differ between healthy ranks, as a standard deviation.
SPREAD = 0.01
#: Probability that the work of a healthy job has an outlier.
FALSE_ALARMS = 0.003
#: Work that takes less than this share of the work of a rank is not tested by itself.
_SMALL = 0.005
#: The row of what a summary does not name.
OTHERS = "(others)"
#: Operators replace others if both take more than this share of the work of the rank.
_REPLACED = 0.02
#: All that a rank does not name takes at least this part of a work of its peers, if that is among it.
_AMONG_OTHERS = 0.5
#: Operators that wait for other ranks.
_WAITS = (
    r"^(c10d|_c10d_functional)::|^(nccl|gloo|hccl|mpi)[:A-Z]|record_param_comms|"
    r"(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
)


@dataclass(frozen=True)
class OwnWork:
    """The work of the ranks of a role, one row a rank, one column a work; NaN where a rank does not name it.

    Attributes:
        ranks: Number of the rank of each row.
        names: The columns :data:`WORK` of each work.
        total: Time a step, ns.
        error: Standard error of ``total`` from the variation of the steps, ns.
        peers: What the work takes the peers: the lower median of the ranks, ns.
    """

    ranks: list[int]
    names: pl.DataFrame
    total: Floats
    error: Floats
    peers: Floats

    def row(self, rank: int) -> pl.DataFrame:
        """Return what each work takes one rank: :data:`WORK`, ``total_ns``, ``peers_ns``."""
        total = pl.Series("total_ns", self.total[self.ranks.index(rank)])
        return self.names.with_columns(total, pl.Series("peers_ns", self.peers)).filter(~pl.col("total_ns").is_nan())

    def unusual(self) -> dict[int, float]:
        """Return for a rank what operators take it longer beyond what all of its work does, ns a step; if some do.

        Operators are tested by name and by module: over phases, and over the rest of a module, many small differences
        are one.
        """
        beyond = self.total - self._factors()[:, None] * self.peers
        tested: dict[str, list[Integers]] = {}
        for by in ("name", "module"):
            values = self.names[by].cast(pl.String)
            groups = [np.flatnonzero((values == value).to_numpy()) for value in values.drop_nulls().unique().sort()]
            # What only one rank does counts as well.
            most = np.nan_to_num(self.total).max(axis=0)
            whole = np.nansum(self.peers)
            tested[by] = [columns for columns in groups if most[columns].sum() >= _SMALL * whole]
        count = sum(map(len, tested.values()))
        found: dict[int, float] = {}
        for groups in tested.values():
            longer: dict[int, float] = {}
            for columns in groups:
                # The calls of a rank that is disturbed vary most: its median is the least certain.
                error = float(np.nanmax(np.linalg.norm(np.nan_to_num(self.error[:, columns]), axis=1)))
                sigma = float(np.hypot(SPREAD * np.nansum(self.peers[columns]), error))
                more = beyond[:, columns].sum(axis=1)
                for row in np.flatnonzero(too_large(more, sigma, FALSE_ALARMS / count)).tolist():
                    longer[self.ranks[row]] = longer.get(self.ranks[row], 0.0) + float(more[row])
            # Both say the same of an operator that one module runs.
            found |= {rank: max(more, found.get(rank, 0.0)) for rank, more in longer.items()}
        return found

    def replaced(self) -> dict[int, tuple[str, str]]:
        """Return the ranks that run operators in place of others: the largest that only they run, and that they lack.

        Most other ranks agree on each of them; of two ranks, each runs other operators than the other. One kernel may
        work for several operators, so that those which launch kernels are compared, too.
        """
        return self._replaced("operator") | self._replaced("name")

    def _replaced(self, by: str) -> dict[int, tuple[str, str]]:
        rest = (self.names["name"] == OTHERS).to_numpy()
        values = self.names[by].cast(pl.String).to_numpy()
        names = self.names.filter(~rest)[by].cast(pl.String).drop_nulls().unique(maintain_order=True).to_list()
        known = [self.total[:, np.flatnonzero((values == name) & ~rest)] for name in names]
        # NaN: not known. A rank that names an operator in one module runs it.
        total = np.array([np.where(np.isnan(one).all(axis=1), np.nan, np.nansum(one, axis=1)) for one in known]).T
        if not total.size:
            return {}
        usual = np.nan_to_num(np.array([np.nanmax(column, initial=0) for column in total.T]))
        total = _lacking(total, _others(self.names, self.total), usual)
        have, lack = (total > 0).sum(axis=0), (total == 0).sum(axis=0)
        half = len(total) / 2
        found = {}
        for row, rank in enumerate(self.ranks):
            whole = np.nansum(self.total[row])
            own = np.where((total[row] > 0) & (lack >= half), total[row], 0)
            missing = np.where((total[row] == 0) & (have >= half), usual, 0)
            if min(own.sum(), missing.sum()) > _REPLACED * whole > 0:
                found[rank] = (names[int(own.argmax())], names[int(missing.argmax())])
        return found

    def runs(self, name: str) -> int:
        """Return how many ranks run an operator."""
        columns = np.flatnonzero(self.names["name"].to_numpy() == name)
        return int((np.nansum(self.total[:, columns], axis=1) > 0).sum())

    def excess(self) -> dict[int, float]:
        """Return what the work of each rank takes longer than its peers', ns a step."""
        more = np.nansum(self.total - self.peers, axis=1)
        return dict(zip(self.ranks, more.tolist(), strict=True))

    def _factors(self) -> Floats:
        """Return how much longer than its peers each rank takes for the work of median weight."""
        known = self.peers > 0
        ratio = self.total[:, known] / self.peers[known]
        weight = np.where(np.isnan(ratio), 0, self.peers[known])
        order = np.argsort(ratio, axis=1)  # NaN last
        running = np.take_along_axis(weight, order, axis=1).cumsum(axis=1)
        middle = (running >= running[:, -1:] / 2).argmax(axis=1) if running.size else np.zeros(len(ratio), np.int64)
        factors: Floats = np.ones(len(ratio))
        if running.size:
            chosen = np.take_along_axis(np.take_along_axis(ratio, order, axis=1), middle[:, None], axis=1)[:, 0]
            factors = np.where(np.isnan(chosen), 1.0, chosen)
        return factors


def work_by_role(
    tables: JobTables, role_of: dict[int, int], *, usual: bool = True, on_host: bool = False
) -> list[OwnWork]:
    """Return the work of the ranks of each role; a rank with kernels is compared by them, else by its operators.

    A work takes as long as its calls a step, times what a call takes in the median of the steps: that holds if a step
    has a hiccup, and if the device's work of one step is counted in another. Of hosts that wait for cores, it is what a
    call takes in the quietest steps. What is not ``usual``, but recurs in some steps, is in the mean of all.
    The work ``on_host`` is the self time of the operators, of ranks with kernels, too.
    """
    rows = tables.operators.filter(
        pl.col("step").is_not_null()
        & (pl.col("phase") != "communication").fill_null(value=True)
        & ~pl.col("name").str.contains(_WAITS)
    )
    # What is left of a name belongs to other works on each rank.
    rest = (pl.col("module") == OTHERS).fill_null(value=False)
    rows = rows.with_columns(
        name=pl.when(rest).then(pl.lit(OTHERS)).otherwise("name"), module=pl.when(~rest).then("module")
    )
    of_device = pl.col("kind") == "kernel"
    with_kernels = set(rows.filter(of_device)["rank"])
    rows = rows.filter(~of_device if on_host else of_device | ~pl.col("rank").is_in(with_kernels))
    steps = tables.steps.group_by("rank").agg(pl.col("step").n_unique().cast(pl.Float64).alias("steps"))
    quantile = _usual_step(tables)
    one_call, calls = pl.col("total") / pl.col("count"), pl.col("count").sum() / pl.col("steps").first()
    total = pl.col("total").sum() / pl.col("steps").first()
    # Waits for a core only lengthen calls: how close together the shortest ones lie says how certain they are.
    quiet = one_call.quantile(quantile + 0.25) - one_call.quantile(quantile, "lower")
    each = (
        rows.group_by("rank", *WORK, "step", maintain_order=True)
        .agg(pl.col("total", "count").sum())
        .join(steps, on="rank")
        .group_by("rank", *WORK, maintain_order=True)
        .agg(
            (one_call.quantile(quantile, "lower") * calls if usual else total).alias("mean"),
            ((quiet if quantile < 0.5 else one_call.std() / pl.len().sqrt()) * calls).fill_null(0).alias("error"),
        )
    )
    found = []
    for role in sorted(set(role_of.values())):
        members = [rank for rank, own in role_of.items() if own == role]
        there = each.filter(pl.col("rank").is_in(members))
        if not there.is_empty():
            found.append(_matrices(there))
    return found


def _usual_step(tables: JobTables) -> float:
    """Return the quantile of the steps that says what work takes a rank."""
    on_host = tables.ranks.filter(pl.col("device") == "cpu")["rank"].to_list()
    return QUIET if own_time(tables.steps, on_host).disturbed else 0.5


def _matrices(rows: pl.DataFrame) -> OwnWork:
    names = rows.select(WORK).unique(maintain_order=True).with_row_index("column")
    placed = rows.join(names, on=WORK, nulls_equal=True)
    ranks = placed["rank"].unique().sort()
    place = (np.searchsorted(ranks.to_numpy(), placed["rank"].to_numpy()), placed["column"].to_numpy())
    # What a rank does not name it may have among its others; without others, it does not do it.
    has_others = ranks.is_in(rows.filter(pl.col("name") == OTHERS)["rank"].unique().to_list()).to_numpy()
    total = np.zeros((len(ranks), len(names)))
    total[has_others] = np.nan
    error = np.zeros_like(total)
    total[place], error[place] = placed["mean"].to_numpy(), placed["error"].to_numpy()
    total = _lacking(total, _others(names, total), np.nan_to_num(total).max(axis=0))
    return OwnWork(ranks.to_list(), names.drop("column"), total, error, lower_median(total.T))


def _others(names: pl.DataFrame, total: Floats) -> Floats:
    """Return the time of the work that the summary of each rank does not name, ns a step; a column."""
    others: Floats = np.nansum(total[:, (names["name"] == OTHERS).to_numpy()], axis=1)
    return others[:, None]


def _lacking(total: Floats, others: Floats, usual: Floats) -> Floats:
    """Return ``total`` with 0 where a rank lacks work.

    That is work that it does not name, and that takes others much longer than all that this rank does not name.
    """
    return np.where(np.isnan(total) & (others < _AMONG_OTHERS * usual), 0.0, total)
