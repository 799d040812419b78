"""Work on data alone in each step: what is the same every time, and rows that the step does not take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import polars as pl

from stepscope.advise.calls import (
    ACCUMULATES,
    PARAMETRIC,
    READS,
    explained_calls,
    explained_within,
    in_order,
    of_step,
    sizes,
)
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed
from stepscope.analyse.quantities import count_text

#: Operators whose results depend on parameters, or may; those that draw random numbers; that cut results.
_LEARNED = r"linear|conv|mm$|matmul|einsum|cdist|embedding|lstm|gru$|rnn|batch_norm|layer_norm|group_norm|attention"
_DRAWS, _CUTS = r"rand(?:[^p]|$)|normal|bernoulli|uniform|dropout|multinomial", "aten::detach"
#: It draws random numbers, too, but most of its time goes into rows that the step does not take.
_PERMUTES, _PERMUTES_IN_PADDLE = "aten::randperm", r"^randperm\b"
#: Operators that put a batch together, and samples from which on they do.
_STACKS, _ROWS = ("aten::stack", "aten::cat"), 32
#: Looks that tell what a function takes.
_LOOKS = 10
#: Part of the step from which on work on inputs is told; part of a function's time in its own lines, and most that its
#: samples and the operators differ by.
_INPUTS, _IN_LINES, _DIFFER = 0.12, 0.3, 3.0
#: Part of the operators between two layers that came before the first one, too, from which on they are these again.
_ALIKE = 0.9


def on_inputs(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    """Yield operators on data alone, in each step before the model's last layer: no parameter has a part in them."""
    chosen = _of_data(calls)
    steps = observed.summary.steps.count
    if chosen["step"].n_unique() < steps:
        return
    time, looks, where = float(chosen["time"].sum()), observed.looks.clear(), ""
    if observed.share(time) >= _INPUTS / 2:
        looks, where = function_of(observed, time)
        time = float(looks["time"].sum()) if where else time
    if observed.share(time) < _INPUTS:
        return
    most = chosen.sort("time", descending=True)["name"][0]
    finding = Finding(
        cause="inputs-in-step",
        title=f"{of_step(observed, time)} go into operators on data alone, in which no parameter has a part"
        f"{': ' * bool(where)}{where}",
        gain_ns=round(0.95 * time), gain_low_ns=round(0.6 * time), gain_high_ns=round(1.3 * time),
        basis="the samples of the function that calls them, or these operators; a twentieth of it stays",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{len(chosen) // steps} operators a step, such as {most}, before the model's last layer; no "
                     "gradient goes through them", value=len(chosen) / steps, result="operator_details", operator=most),
        ),
        remedy="Draw rows with torch.randint(n, (batch,)), or go through one permutation in each epoch: "
        "for rows in torch.randperm(n).split(batch)."
        if most == _PERMUTES else
        "Compute what is the same in each step once, before the loop or in __init__ (register_buffer); of a set "
        "of data only the rows that the step takes (X[indices]); the rest in the data loader's workers.",
        operator=where or most,
    )  # fmt: skip
    yield Claim(finding, Depth.PLACE, {**explained_within(calls, chosen), **observed.explained(looks)})


def permutations(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    """Yield permutations of all rows that Paddle draws in each step, of which a batch takes a few."""
    drawn = calls.filter((pl.col("outer") < 0) & pl.col("name").str.contains(_PERMUTES_IN_PADDLE))
    steps, time = observed.summary.steps.count, float(drawn["time"].sum())
    if observed.share(time) < _INPUTS or drawn["step"].n_unique() < steps:
        return
    finding = Finding(
        cause="inputs-in-step",
        title=f"{of_step(observed, time)} go into permutations of all rows, of which each step takes a batch",
        gain_ns=round(0.95 * time), gain_low_ns=round(0.6 * time), gain_high_ns=round(1.3 * time),
        basis="these operators; a twentieth of them stays",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"randperm is called {count_text(round(len(drawn) / steps), 'time')} a step",
                     value=len(drawn) / steps, result="operator_details", operator="randperm"),
        ),
        remedy="Draw rows with paddle.randint(0, n, [batch]), or go through one permutation in each epoch: "
        "order = paddle.randperm(n), then rows = order[i : i + batch].",
        operator="randperm",
    )  # fmt: skip
    yield Claim(finding, Depth.PLACE, explained_calls(drawn))


def stacked_rows(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    """Yield batches that the program puts together from a tensor for each sample, in each step and outside a loader."""
    stacks = calls.filter((pl.col("outer") < 0) & (pl.col("phase") == "other") & pl.col("name").is_in(_STACKS))
    alike = [Counter(sizes(text)).most_common(1) for text in stacks["shapes"].to_list()]
    count = pl.Series([found[0][1] if found else 0 for found in alike], dtype=pl.Int64)
    many, steps = stacks.filter(count >= _ROWS), observed.summary.steps.count
    if many.is_empty() or many["step"].n_unique() < steps:
        return
    chosen = stacks.filter((count >= _ROWS) | (count == 0))  # numbers have no sizes that tell how many they are
    time = float(in_order(observed, calls).join(chosen, on="row", how="semi")["until"].sum())
    if observed.share(time) < _INPUTS:
        return
    rows = int(count.filter(count >= _ROWS).median() or 0)  # type: ignore[arg-type]
    finding = Finding(
        cause="inputs-in-step",
        title=f"{of_step(observed, time)} a batch is put together from {rows} tensors, one for each sample"
        f"{observed.most_seen(observed.looks.filter(pl.col('phase').is_null() | (pl.col('phase') == 'other')))}",
        gain_ns=round(0.85 * time), gain_low_ns=round(0.6 * time), gain_high_ns=round(1.3 * time),
        basis="the time from operator to operator of these, with the Python that lists their tensors",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{' and '.join(chosen['name'].unique().sort())}: "
                     f"{count_text(round(len(chosen) / steps), 'call')} a step",
                     value=len(chosen) / steps, result="operator_details", operator=_STACKS[0]),
        ),
        remedy="Keep each field of all samples in one tensor, which new samples overwrite row by row, and take a batch "
        "by index: states[torch.randint(n, (batch,))].",
        operator=_STACKS[0],
    )  # fmt: skip
    yield Claim(finding, Depth.PLACE, explained_within(calls, chosen))


def _of_data(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost calls without gradients that work on data; no row where some of them may have parameters.

    Between layers, those that begin with a tensor made of nothing count, and those that were called before the first
    one, too: others may work on what the layers give.
    Random numbers are new in each step. What has the shape of a parameter belongs to the parameters.
    """
    top, other = calls.filter(pl.col("outer") < 0).sort("step", "ts"), pl.col("phase") == "other"
    layers = top.filter(pl.col("name").is_in(PARAMETRIC) & (pl.col("phase") == "forward"))
    bounds = layers.group_by("step").agg(first=pl.col("ts").min(), last=pl.col("ts").max())
    early = top.join(bounds, on="step", maintain_order="left").filter(pl.col("ts") < pl.col("last"))
    alone = early.filter(other)
    cut = alone.filter(pl.col("name") == _CUTS)["shapes"].to_list()
    if alone["name"].str.contains(_LEARNED).any() or any(sum(sizes(text), ()) for text in cut):
        return alone.clear()
    ends = early.filter(other & pl.col("name").is_in(READS) & (pl.col("ts") < pl.col("first")))
    early = early.join(ends.group_by("step").agg(end=pl.col("ts").max()), on="step", how="left", maintain_order="left")
    early = early.with_columns(run=pl.struct("step", other).rle_id())
    made = [not any(sizes(text)) for text in early["shapes"].to_list()]
    early = early.with_columns(made=pl.Series(made, dtype=pl.Boolean)).with_columns(pl.col("made").first().over("run"))
    trained = {sizes(text)[:1] for text in calls.filter(pl.col("name") == ACCUMULATES)["shapes"].to_list()}
    weights = {shape for shapes in trained for shape in shapes if len(shape) > 1}
    data = pl.Series([weights.isdisjoint(sizes(text)) for text in early["shapes"].to_list()], dtype=pl.Boolean)
    before = (pl.col("ts") < pl.col("first")) & (pl.col("ts") > pl.col("end").fill_null(0))
    like = early.filter(other & before).select("name", "shapes", again=True).unique()
    early = early.join(like, on=["name", "shapes"], how="left", nulls_equal=True, maintain_order="left")
    again = pl.col("again").fill_null(value=False).mean().over("run") >= _ALIKE
    inside = (pl.col("ts") > pl.col("first")) & (pl.col("made") | again)
    return early.filter(other & data & (before | inside) & ~pl.col("name").str.contains(_DRAWS))


def function_of(observed: Observed, time: float) -> tuple[pl.DataFrame, str]:
    """Return the looks in the program's function whose own lines call operators for about that time, and its name."""
    training = pl.col("phase").is_in(["data", "backward", "optimizer"]).fill_null(value=False)
    looks = observed.looks.filter(~training & pl.col("file").is_not_null())
    own = pl.when(pl.col("leaf") == pl.col("file")).then("time").otherwise(0.0)
    named = pl.when(pl.col("function") == "<module>").then("line")
    keys = looks.select("file", "function", line=named, spent="time", own=own, count="count")
    found = keys.group_by("file", "function", "line").agg(pl.col("spent", "own", "count").sum())
    near = found.filter(
        (pl.col("own") >= _IN_LINES * pl.col("spent")) & (pl.col("count") >= _LOOKS)
        & pl.col("spent").is_between(time / _DIFFER, _DIFFER * time)
    ).sort((pl.col("spent") / time).log().abs())  # fmt: skip
    if near.is_empty():
        return looks.clear(), ""
    file, function, line = near.select("file", "function", "line").row(0)
    mine = (pl.col("file") == file) & (pl.col("function") == function)
    mine = mine if line is None else mine & (pl.col("line") == line)
    place = observed.place(file, line)
    return looks.filter(mine), place if line is not None else f"{function} ({place})"
