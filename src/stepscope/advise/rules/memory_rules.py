"""Memory moved for nothing: copies between layouts, embeddings by one-hot rows or dense gradients, pages taken anew."""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import itemgetter

import polars as pl

from stepscope.advise.calls import (
    each,
    elements,
    executing,
    explained_within,
    of_step,
    one_core,
    outermost,
    product_flops,
    recorded_calls,
    sizes,
    within,
)
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed
from stepscope.analyse.quantities import bytes_text, count_text, duration_text, number_text
from stepscope.trace.tables import columns_of, has_rows

#: Part of the step from which on copies and page faults are told: attention copies a little in every model.
_TOLD = 0.1
#: Part of the step from which on the copies are told where convolutions reorder the same tensors inside.
_BETWEEN_CONVOLUTIONS = 0.04
#: The same where a copy comes with every few of them, and what the library reorders takes a tenth of the step.
_BETWEEN_LARGE, _COPIES = 0.01, 0.2
#: Channels of a group from which on a convolution computes as a product does.
_OF_GROUP = 8
#: Part of the speed of a large product that convolutions reach without a reorder: least, usual and most saved.
_REACHED = (0.35, 0.5, 0.7)
#: Convolutions, the operators whose sizes are known, and the place of the data among their inputs.
_CONVOLUTIONS = {"aten::convolution": 0, "aten::convolution_backward": 1}
#: Part of the copies that the forward or the program itself makes; without them, the backward orders gradients.
_ASKED = 0.25
#: Elements of a tensor from which on its copy is told.
_LARGE = 4096
#: Rows of an embedding that a step uses, as part of all, up to which a sparse gradient is smaller.
_SPARSE = 0.25
#: Part of the step from which on dense gradients are told: with SGD, and where a sparse gradient trains otherwise.
_PLAIN, _ADAPTIVE = 0.1, 0.4
#: What writes ones into a tensor of zeros; rows and columns from which on the result is large.
_ONE_HOT, _ONE_ROWS, _ONE_COLUMNS = "aten::scatter_", 16, 32
_PLAIN_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
#: Bytes a second at which an embedding reads and writes its rows and its gradient.
_EMBEDS = 4e9
#: Part of its memory that a process holds, from which on the kernel takes pages from it.
_NEARLY_FULL = 0.85
#: Part of the step from which on page faults are told.
_FAULTS_TOLD = 0.25
#: A page fault of a fresh page where this machine's is unknown: the least, the usual and the most, ns.
_FAULT_NS = (700.0, 2000.0, 3500.0)
#: Parts of this machine's page fault that one in a training costs: the least, the usual and the most.
_OF_MEASURED = (0.6, 0.9, 1.2)
_PAGE, _MIB = 1 << 12, 1 << 20
#: What is reused instead of taken anew, by framework.
_REUSED = {
    "torch": "tensors: torch.mul(a, b, out=buffer), in-place operators, optimizer.zero_grad(set_to_none=False)",
    "jax": "arrays: jax.jit(train_step, donate_argnums=0), numpy's out=buffer for batches",
    "paddle": "tensors: in-place operators (x.add_(y)), paddle.assign(value, output=buffer)",
    "mindspore": "tensors and arrays: numpy's out=buffer for batches",
}
#: Bytes of an array from which on its copy is told that XLA makes of an argument.
_LARGE_ARGUMENT = 4 << 20
#: Bytes a step from which on memory grows; parts of it that its holders must explain, and fresh pages in all steps.
_GROWS, _HELD = _MIB, 0.5
#: What makes one-hot rows in a compiled program of JAX, and the sizes in the name of a type.
_ONE_HOT_OF_JAX = r"(?:^|[/(])_?one_hot[/)]"
_ONE_HOT_OF_PADDLE, _PRODUCT_OF_PADDLE = ("one_hot dygraph", "pd_op.one_hot"), ("matmul dygraph", "pd_op.matmul")
_PRODUCT_NODE, _SHAPE = r"MatmulGradNode$|^pd_op\.matmul_grad$", re.compile(r"\w+\[([\d,]*)\]")
#: Part of the step from which on the time of its fresh pages is told.
_GROWTH_TOLD = 0.07
#: Bytes from which on the C library asks the system for memory, whatever it has kept.
_LARGEST_KEPT = 32 << 20


def memory_moves(observed: Observed) -> Iterator[Claim]:
    """Yield memory that each step copies, fills or takes from the system without need."""
    if observed.framework == "jax":
        yield from _not_donated(observed)
    if observed.summary.on_device:
        return
    yield from _faults(observed)
    yield from _growth(observed)
    yield from _near_limit(observed)
    calls = recorded_calls(observed)
    if observed.framework == "jax":
        yield from _one_hot_of_jax(observed, calls)
    if observed.framework == "paddle":
        yield from _one_hot_of_paddle(observed, calls)
    if observed.framework == "torch" and len(calls):
        yield from _layouts(observed, calls)
        yield from _embeddings(observed, calls)
        yield from _one_hot(observed, calls)
        yield from _grown(observed, calls)


def _layouts(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    rows = calls.filter(pl.col("name") == "aten::copy_")
    turned = [_turns(*row) for row in rows.select("shapes", "strides").iter_rows()]
    copies = rows.filter(pl.Series(turned, dtype=pl.Boolean) & (pl.col("phase") != "optimizer").fill_null(value=True))
    time = float(copies["time"].sum())
    asked = copies.filter((pl.col("phase") != "backward").fill_null(value=True))
    reordering, saved = _reordering(observed, calls)
    least = _TOLD if reordering.is_empty() else _BETWEEN_CONVOLUTIONS
    # A convolution that copies its own input does so whatever the program does, as transposed ones do.
    between = asked.join(within(calls, calls.filter(pl.col("name").is_in(list(_CONVOLUTIONS)))), on="row", how="anti")
    if len(between) >= _COPIES * len(reordering) > 0 and observed.share(saved[0]) >= _TOLD:
        least = _BETWEEN_LARGE
    if observed.share(time) < least or float(asked["time"].sum()) < _ASKED * time:
        return
    steps = observed.summary.steps.count
    largest = copies.group_by("shapes").agg(pl.col("time").sum()).sort("time", descending=True)
    shape = list(sizes(largest["shapes"][0])[0])
    low, gain, high = (part * time + inside for part, inside in zip((0.6, 0.9, 1.3), saved, strict=True))
    also = f", {duration_text(saved[1])} of it inside of their convolutions" if saved[1] else ""
    evidence = [
        Evidence(text=f"{len(copies) // steps} such copies a step, most of {shape}", value=len(copies) / steps,
                 result="operator_details", operator="aten::copy_"),
    ]  # fmt: skip
    explains = explained_within(calls, copies)
    if saved[1]:
        evidence.append(
            Evidence(text=f"convolutions whose channels are not last take {duration_text(saved[1])} longer than their "
                     "operations at half the speed of this machine's products", value=saved[1], unit="ns",
                     result="operator_details", operator=str(reordering["name"][0]))
        )  # fmt: skip
        # What the library reorders, it puts into memory that it takes anew: these page faults are part of its time.
        explains |= explained_within(calls, reordering)
        explains["page faults"] = faults_of_step(observed) * fault_costs(observed)[1]
    finding = Finding(
        cause="layout-copies",
        title=f"{of_step(observed, time + saved[1])} tensors are copied into another order of their dimensions{also}",
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(min(high, observed.step_ns)),
        basis="the copies between tensors of one shape whose dimensions lie in different orders"
        + (", and the time of their convolutions beyond that of their operations" if saved[1] else ""),
        confidence=Confidence.LIKELY if saved[1] else Confidence.MEASURED,
        evidence=tuple(evidence),
        remedy="Keep one order from the input to the loss: model.to(memory_format=torch.channels_last) and "
        "x.contiguous(memory_format=torch.channels_last) for images; permute once before the loop; remove "
        ".contiguous() where the next operator takes views.",
        operator="aten::copy_",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, explains)


def _reordering(observed: Observed, calls: pl.DataFrame) -> tuple[pl.DataFrame, tuple[float, float, float]]:
    """Return the convolutions of images whose channels are not last, and what their inner reordering costs, ns a step.

    Libraries of CPUs compute in an order with the channels last and reorder other tensors at each call. The cost is the
    time beyond the operations at a part of the speed of this machine's products; (0, 0, 0) where that is not known.
    """
    rows = calls.filter(pl.col("name").is_in(list(_CONVOLUTIONS)))
    planar = [_planar(name, *row) for name, *row in rows.select("name", "shapes", "strides").iter_rows()]
    rows = rows.filter(pl.Series(planar, dtype=pl.Boolean))
    single, steps = one_core(observed, "float32"), max(observed.summary.steps.count, 1)
    if rows.is_empty() or not single or "aten::instance_norm" in calls["name"]:  # it takes no other order
        return rows.clear(), (0.0, 0.0, 0.0)
    state = observed.facts.get("torch.state")
    threads = max(int(state.get("threads") or 1), 1) if isinstance(state, dict) else 1
    flops = sum(product_flops(*row) for row in rows.select("name", "shapes", "concrete").iter_rows()) / steps
    time = float(rows["time"].sum())
    low, usual, high = (max(time - 1e9 * flops / (part * single * threads), 0.0) for part in _REACHED)
    return rows, (low, usual, high)


def _planar(name: str, shapes: str | None, strides: str | None) -> bool:
    """Return whether a convolution's data are images of several channels, which are not the innermost dimension."""
    place = _CONVOLUTIONS[name]
    found, steps = sizes(shapes), sizes(strides)
    if len(found) <= place or len(steps) <= place or len(found[place]) < 4 or len(steps[place]) != len(found[place]):
        return False
    channels, weight = found[place][1], (*found, ())[place + 1]
    of_group = weight[1] if len(weight) > 1 else channels
    return channels > 1 and steps[place][1] != 1 and of_group >= min(_OF_GROUP, channels)


def _turns(shapes: str | None, strides: str | None) -> bool:
    """Return whether a copy's two tensors have one shape, and dimensions in different orders."""
    shape = sizes(shapes)
    steps = sizes(strides)
    if len(shape) < 2 or len(steps) < 2 or shape[0] != shape[1] or elements(shape[0]) < _LARGE:
        return False
    wide = [axis for axis, size in enumerate(shape[0]) if size > 1]
    orders = [sorted(wide, key=lambda axis: (-one[axis], axis)) for one in steps[:2] if len(one) == len(shape[0])]
    # A dimension without a stride is one that was expanded: the copy makes new elements.
    return len(orders) == 2 and orders[0] != orders[1] and all(steps[1][axis] for axis in wide)


def _embeddings(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    looked_up = calls.filter(
        pl.col("name").is_in(["aten::embedding", "aten::embedding_bag", "aten::_embedding_bag"])
        & (pl.col("phase") == "forward")
    )
    tables: dict[tuple[int, ...], int] = {}
    for text in looked_up["shapes"].unique().to_list():
        weight, indices = (*sizes(text), (), ())[:2]
        if len(weight) == 2 and elements(indices) < _SPARSE * weight[0]:
            tables[weight] = max(tables.get(weight, 0), elements(indices))
    if not tables:
        return
    dense = calls.filter(pl.col("name").str.ends_with("dense_backward"))
    shaped = each(calls["shapes"], lambda text: any(shape in tables for shape in sizes(text)), pl.Boolean())
    touching = calls.filter(shaped & pl.col("phase").is_in(["backward", "optimizer"]))
    whole = outermost(calls, pl.concat([touching, dense]).unique("row", maintain_order=True))
    time = float(whole["time"].sum())
    told = _PLAIN if _plain(observed) else _ADAPTIVE
    if dense.is_empty() or observed.share(time) < told:
        return
    weight, rows = max(tables.items(), key=lambda item: elements(item[0]))
    kept = rows / weight[0]
    gain = time * (1 - kept)
    finding = Finding(
        cause="dense-embedding-gradient",
        title=f"{of_step(observed, time)} goes into gradients of all {weight[0]:,} rows of "
        f"an embedding, of which a step uses at most {rows:,}",
        gain_ns=round(gain), gain_low_ns=round(0.7 * gain), gain_high_ns=round(1.15 * time),
        basis="the operators that make the dense gradient, add it up and update the whole table",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"embedding of {weight[0]:,} × {weight[1]}, {rows:,} indices a step", value=float(rows),
                     result="operator_details", operator=str(dense["name"][0])),
        ),
        remedy=f"torch.nn.Embedding({weight[0]}, {weight[1]}, sparse=True), with torch.optim.SGD or "
        "torch.optim.SparseAdam for its parameters.",
        operator=str(dense["name"][0]),
    )  # fmt: skip
    explains = explained_within(calls, whole)
    # Such gradients are taken anew in each step: these page faults are part of their time.
    yield Claim(finding, Depth.CAUSE, explains | {"page faults": faults_of_step(observed) * fault_costs(observed)[1]})


def _one_hot(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    """Products of the forward whose first matrix is one-hot, or turned so, and those that make the other's gradient.

    A one-hot target of a loss is in no product of the forward. Turned, one-hot rows add up rows: messages to nodes.
    """
    made = calls.filter(pl.col("name") == _ONE_HOT)
    tables = {shape for text in made["shapes"].unique() if (shape := _one_hot_rows(text)) is not None}
    if not tables:
        return
    products = calls.filter(pl.col("name").is_in(_PLAIN_PRODUCTS))
    inputs = {text: tuple(one for one in sizes(text) if len(one) > 1) for text in products["shapes"].unique().to_list()}
    forward = pl.col("phase") != "backward"
    either = tables | {(columns, rows) for rows, columns in tables}
    first = [bool(inputs[text]) and _matrix(inputs[text][0]) in either for text in products["shapes"].to_list()]
    taken = products.filter(pl.Series(first, dtype=pl.Boolean) & forward.fill_null(value=True))
    if taken.is_empty():
        return
    rows, columns = _matrix(inputs[taken["shapes"][0]][0])
    width = inputs[taken["shapes"][0]][1][-1]
    turned = {((width, rows), (rows, columns)), ((columns, rows), (rows, width))}
    gradient = products.filter(~forward & pl.Series([inputs[text][:2] in turned for text in products["shapes"]]))
    whole = [bool(sizes(text)) and elements(sizes(text)[0]) == rows * columns for text in calls["shapes"].to_list()]
    filled = calls.filter(
        pl.Series(whole, dtype=pl.Boolean) & pl.col("name").is_in([_ONE_HOT, "aten::copy_", "aten::fill_"])
    )
    chosen = outermost(calls, pl.concat([filled, taken, gradient]).unique("row").sort("row"))
    remedy = f"torch.nn.Embedding({columns}, {width})(tokens) instead of torch.nn.Linear of torch.nn.functional.one_hot"
    if (rows, columns) not in tables:
        rows, columns = columns, rows
        remedy = f"torch.zeros({columns}, {width}).index_add(0, indices, rows) instead of one_hot(indices).T @ rows"
    yield from _one_hot_claim(observed, calls, chosen, (rows, columns, width), remedy)


def _one_hot_of_jax(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    """The same in a compiled program: its instructions say what ``jax.nn.one_hot`` made, and what takes it."""
    names = ("id", "program_id", "scope", "shape", "operands", "parent")
    known = columns_of(observed.tables, "instructions", *names).filter(pl.col("parent").is_null())
    made = known.filter(pl.col("scope").cast(pl.String).str.contains(_ONE_HOT_OF_JAX))
    for maker, program, shape in made.select("id", "program_id", "shape").iter_rows():
        rows, columns = _matrix((_typed(shape) or [()])[0] or (0,))
        if rows < _ONE_ROWS or columns < _ONE_COLUMNS:
            continue
        inputs_of = {
            one: _typed(operands)
            for one, operands in known.filter(pl.col("program_id") == program).select("id", "operands").iter_rows()
        }
        takes = {
            one: inputs
            for one, inputs in inputs_of.items()
            if any(inside and _matrix(inside) == (rows, columns) for inside in inputs)
        }
        read = [of for inputs in takes.values() for of in inputs if len(of) == 2 and of[0] == columns and of[1] != rows]
        width = next((of[1] for of in read), 0)
        turned = [(columns, width), (width, rows), (rows, width)]
        chosen = [one for one, inputs in takes.items() if any(of in turned for of in inputs)]
        if width:
            ran = columns_of(observed.tables, "operators", "span", "instruction")
            ran = ran.filter(pl.col("instruction").is_in([maker, *chosen])).select(id="span")
            mine = calls.join(ran, on="id", how="semi", maintain_order="left")
            remedy = "table[tokens] instead of jax.nn.one_hot(tokens, …) @ table"
            yield from _one_hot_claim(observed, calls, mine, (rows, columns, width), remedy)


def _one_hot_of_paddle(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    """The same without shapes: a product of the forward right behind one-hot rows. Nodes come in the reverse order."""
    model = calls.filter((pl.col("outer") < 0) & (pl.col("phase") == "forward")).sort("track", "step", "ts")
    product, steps = pl.col("name").is_in(_PRODUCT_OF_PADDLE), max(observed.summary.steps.count, 1)
    behind = model.filter(~pl.col("name").is_in(["cast dygraph", "pd_op.cast"])).with_columns(
        first=pl.col("name").is_in(_ONE_HOT_OF_PADDLE).shift(1).over("track", "step"),
        last=pl.len().over("step", "name") - pl.col("row").cum_count().over("step", "name"),
    )
    taken = behind.filter(product & pl.col("first"))
    nodes = calls.filter((pl.col("outer") < 0) & pl.col("name").str.contains(_PRODUCT_NODE)).sort("step", "ts")
    nodes = nodes.with_columns(last=(pl.col("row").cum_count().over("step") - 1).cast(pl.UInt32))
    gradient = nodes.join(taken.select("step", last=pl.col("last").cast(pl.UInt32)), on=["step", "last"], how="semi")
    if len(nodes) != len(behind.filter(product)):  # of a product that trains nothing, no node is there
        gradient = gradient.clear()
    made = model.filter(pl.col("name").is_in(_ONE_HOT_OF_PADDLE))
    if taken.is_empty() or len(taken) < len(made):
        return
    chosen = pl.concat([part.select(calls.columns) for part in (made, taken, gradient)])
    time = float(chosen["time"].sum())
    usual = float(model["time"].median() or 0.0)  # type: ignore[arg-type]
    gain = time - usual * len(chosen)  # an embedding is as many small operators
    if observed.share(gain) < _GROWTH_TOLD:
        return
    finding = Finding(
        cause="one-hot-product",
        title=f"{of_step(observed, time)} make one-hot rows and multiply them with a matrix, which reads one of its "
        "rows for each",
        gain_ns=round(gain), gain_low_ns=round(0.7 * gain), gain_high_ns=round(time),
        basis="the operators that make the one-hot rows, the products right behind them, and their gradients, less as "
        "many usual operators",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{number_text(len(taken) / steps)} products a step right behind one_hot",
                     value=len(taken) / steps, result="operator_details", operator=str(taken["name"][0])),
        ),
        remedy="Read the rows by their numbers: paddle.nn.functional.embedding(tokens, table) instead of "
        "paddle.matmul(paddle.nn.functional.one_hot(tokens, …), table).",
        operator=str(taken["name"][0]),
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, explained_within(calls, chosen))


def _typed(text: str | None) -> list[tuple[int, ...]]:
    """Return the shapes of a list of types: ``f32[512,4000], f32[]``."""
    return [tuple(map(int, one.split(","))) if one else () for one in _SHAPE.findall(text or "")]


def _one_hot_claim(
    observed: Observed, calls: pl.DataFrame, chosen: pl.DataFrame, of: tuple[int, int, int], remedy: str
) -> Iterator[Claim]:
    """Yield the claim that these calls make rows with a single one, and multiply them with columns × width numbers."""
    rows, columns, width = of
    time = float(chosen["time"].sum())
    stays = 4.0 * (4 * rows * width + 2 * columns * width) / _EMBEDS * 1e9
    gain = time - stays
    if chosen.is_empty() or observed.share(gain) < _GROWTH_TOLD:
        return
    largest = str(chosen.sort("time", descending=True)["name"][0])
    finding = Finding(
        cause="one-hot-product",
        title=f"{of_step(observed, time)} make one-hot rows of {columns:,} numbers and multiply them with a matrix, "
        "which reads, or adds up, single rows of it",
        gain_ns=round(gain), gain_low_ns=round(0.7 * gain), gain_high_ns=round(time),
        basis="the operators that fill the one-hot rows and the products with them, less what an embedding moves",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"{rows:,} rows of {columns:,} with a single one, in products {width} wide",
                     value=float(rows), result="operator_details", operator=largest),
        ),
        remedy=f"Take the rows by their numbers: {remedy}.",
        operator=largest,
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, explained_within(calls, chosen))


def _one_hot_rows(text: str | None) -> tuple[int, int] | None:
    """Return rows and columns of the one-hot matrix that a call of ``scatter_`` makes; None if it makes none."""
    shapes = [shape for shape in sizes(text) if shape]  # single values have none
    if len(shapes) < 2 or shapes[1] != (*shapes[0][:-1], 1):
        return None
    rows, columns = _matrix(shapes[0])
    return (rows, columns) if rows >= _ONE_ROWS and columns >= _ONE_COLUMNS else None


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return elements(shape[:-1]), shape[-1]


def _plain(observed: Observed) -> bool:
    """Return whether all optimizers are SGD, with which a sparse gradient trains as a dense one does."""
    state = observed.facts.get("torch.state")
    optimizers = state.get("optimizers") or [] if isinstance(state, dict) else []
    return bool(optimizers) and all(one.get("class") == "SGD" for one in optimizers)


def faults_of_step(observed: Observed) -> float:
    """Return the page faults of the training thread in the median step of the run; 0 if unknown."""
    known = observed.run_steps["minor_faults"].drop_nulls()
    return float(known.median() or 0.0) if len(known) else 0.0  # type: ignore[arg-type]


def fault_costs(observed: Observed) -> tuple[float, float, float]:
    """Return what a page fault costs, ns: the least, the usual, the most; by this machine's own speed if known."""
    measured = next((one["fault_ns"] for one in observed.speeds if one.get("fault_ns")), None)
    return tuple(part * measured for part in _OF_MEASURED) if measured else _FAULT_NS


def _growth(observed: Observed) -> Iterator[Claim]:
    """Memory that every step takes and keeps, which is known by its blocks and by fresh pages in all steps."""
    if not has_rows(observed.tables, "allocations"):
        return
    rows = observed.result("memory_growth")
    whole = rows.filter(pl.col("Category") == "all")["Growth(MB/step)"]
    # What an optimizer keeps has a limit of its own, such as the history of L-BFGS.
    held = rows.filter(~pl.col("Category").is_in(["all", "optimizer state"])).sort("Growth(MB/step)", descending=True)
    growth = float(whole.max() or 0.0) * _MIB  # type: ignore[arg-type]
    holding = float(held["Growth(MB/step)"].sum()) * _MIB
    if growth < _GROWS or holding < _HELD * growth or faults_of_step(observed) * _PAGE < _HELD * growth:
        return
    # Blocks that are kept lie between those that are freed: all fresh pages of a growing heap follow from its growth.
    faults, costs = faults_of_step(observed), fault_costs(observed)
    low, time, high = min(growth, holding) / _PAGE * costs[0], faults * costs[1], faults * costs[2]
    worth = observed.share(time) >= _GROWTH_TOLD
    largest = held.row(0, named=True)
    holder = str(largest["Operator"] or "unknown operators")
    where = f" at {largest['Taken At']}" if largest["Taken At"] else ""
    finding = Finding(
        cause="growing-memory",
        title=f"memory grows by {bytes_text(round(growth))} a step: what {holder} takes{where} is kept"
        + (f"; fresh pages for it take {of_step(observed, time)}" if worth else ""),
        gain_ns=round(time) if worth else None,
        gain_low_ns=round(low) if worth else None,
        gain_high_ns=round(min(high, observed.step_ns)) if worth else None,
        basis="the page faults of the step, of which at least the growth goes away, at what one costs on this machine"
        if worth else
        "what the growth costs is memory: the process ends when none is left",
        confidence=Confidence.LIKELY,
        evidence=tuple(
            Evidence(text=f"{row['Operator'] or 'an operator'} takes {number_text(row['Growth(MB/step)'])} MiB a step "
                     "and keeps it", value=row["Growth(MB/step)"], unit="MiB", result="memory_growth",
                     operator=row["Operator"], module=row["Module"])
            for row in held.head(3).iter_rows(named=True)
        ),
        remedy="Find what refers to the tensors of earlier steps: a list or dict that is appended to in the loop. Keep "
        "numbers: history.append(loss.item()); or detached copies on the CPU of what is needed: output.detach().cpu(). "
        "A loss or output with its graph keeps all activations of its step.",
        operator=holder,
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, {"page faults": time})


def _grown(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    """A tensor that each step makes anew from the one of the step before and a little more."""
    joined = calls.filter((pl.col("name") == "aten::cat") & (pl.col("phase") != "backward").fill_null(value=True))
    inputs = {text: [elements(one) for one in sizes(text) if one] for text in joined["shapes"].unique().to_list()}
    first, whole = ([of(inputs[text] or [0]) for text in joined["shapes"].to_list()] for of in (itemgetter(0), sum))
    joined = joined.with_columns(first=pl.Series(first, dtype=pl.Int64), whole=pl.Series(whole, dtype=pl.Int64))
    joined = joined.filter(pl.col("first") > pl.col("whole") / 2)
    # It grows in each step if the first input of each is what the step before made.
    chain = joined.group_by("step").agg(pl.col("first").min(), pl.col("whole").max()).sort("step")
    steps = observed.summary.steps.count
    grows = (chain["whole"].shift(1) == chain["first"])[1:].all() and (chain["whole"] > chain["first"]).all()
    if len(chain) < max(steps, 3) or not grows:
        return
    large = joined.filter(pl.col("first") >= int(chain["first"].min()))  # type: ignore[arg-type]
    size, more = float(chain["whole"].max()), float((chain["whole"] - chain["first"]).mean())  # type: ignore[arg-type]
    faults = min(4.0 * size / _PAGE, faults_of_step(observed)) * fault_costs(observed)[1]
    time = float(large["time"].sum()) * (1 - more / size)
    finding = Finding(
        cause="growing-memory",
        title=f"{of_step(observed, time)} torch.cat copies what earlier steps have kept, {size:,.0f} numbers, to "
        f"add {more:,.0f}; it grows with every step",
        gain_ns=round(time), gain_low_ns=round(0.7 * time), gain_high_ns=round(time + faults),
        basis="the time of these copies, but for what is added",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"in each of {len(chain)} recorded steps the first input is the result of the step before",
                     value=size, result="operator_details", operator="aten::cat"),
        ),
        remedy="Take a buffer of the final size before the loop and fill it: bank[start : start + len(x)] = x; or "
        "collect the pieces in a list and join them once at the end.",
        operator="aten::cat",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, {**explained_within(calls, large), "page faults": faults})


def _faults(observed: Observed) -> Iterator[Claim]:
    faults, costs = faults_of_step(observed), fault_costs(observed)
    low, gain, high = (min(faults * cost, observed.step_ns) for cost in costs)
    if observed.share(gain) < _FAULTS_TOLD:
        return
    taken = observed.tables["allocations"].filter(pl.col("bytes") > _LARGEST_KEPT).select("bytes").collect()
    large = count_text(len(taken) // max(observed.summary.steps.count, 1), "block") if len(taken) else ""
    finding = Finding(
        cause="allocator-page-faults",
        title=f"about {of_step(observed, gain)} the system gives the process "
        f"{bytes_text(int(faults * _PAGE))} of fresh pages, step after step",
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(high),
        basis=f"the page faults of the training thread, {costs[0] / 1000:.1f} to {costs[2] / 1000:.1f} µs each",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{faults:,.0f} page faults in the median step", value=faults, result="step_times"),
            *((Evidence(text=f"{large} a step of more than 32 MiB, which the C library never keeps",
                        result="memory_record"),) if large else ()),
        ),
        remedy=f"Reuse large {_REUSED.get(observed.framework, 'arrays')}. Or let the allocator keep its memory: "
        "MALLOC_TOP_PAD_=268435456 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1 in the environment, or LD_PRELOAD of "
        "jemalloc or tcmalloc.",
    )  # fmt: skip
    # Fresh pages are taken by something: a cause that explains them owns their time.
    yield Claim(finding, Depth.PLACE, {"page faults": gain})


def pages_read_again(observed: Observed) -> tuple[float, int, int] | None:
    """Return how many pages the kernel reads again a step, because it took them from a process that is nearly full.

    Also what the process holds, and its limit, in bytes; None where it is not so.
    """
    machine, taken = observed.facts.get("machine"), observed.summary.resident_bytes
    said = machine if isinstance(machine, dict) else {}
    limit = min((int(said[name]) for name in ("memory_limit", "memory_bytes") if said.get(name)), default=None)
    known = observed.run_steps["major_faults"].drop_nulls()
    faults = float(known.sum()) / max(len(known), 1)
    return (faults, taken, limit) if limit and taken and taken >= _NEARLY_FULL * limit and faults >= 1 else None


def _near_limit(observed: Observed) -> Iterator[Claim]:
    found, looks = pages_read_again(observed), observed.looks.filter(pl.col("state") == "io")
    time = float(looks["time"].sum())
    if found is None or observed.share(time) < _TOLD:
        return
    faults, taken, limit = found
    finding = Finding(
        cause="near-memory-limit",
        title=f"{of_step(observed, time)} the training waits for pages of its own that are read from disk again: it "
        f"holds {bytes_text(taken)} of {bytes_text(limit)}",
        gain_ns=round(time), gain_low_ns=round(0.5 * time), gain_high_ns=round(time),
        basis="the looks at which the training thread waits for a disk",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{faults:,.0f} page faults a step that needed a disk", value=faults, result="step_times"),
        ),
        remedy="Take less memory: smaller batches, fewer copies of the data set (one for each worker that is spawned), "
        "samples that are read when they are needed. Or raise the limit of the container or job.",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, observed.explained(looks))


def _not_donated(observed: Observed) -> Iterator[Claim]:
    """Copies that XLA makes of arguments before it updates them in place, because the caller has not donated them."""
    state = observed.facts.get("jax.state")
    jitted = state.get("jit") or [] if isinstance(state, dict) else []
    kept = [f"jit_{one['function']}" for one in jitted if not one.get("donate_argnums") and one.get("function")]
    ran = observed.result("instruction_details")
    if not kept or ran.is_empty():
        return
    ran = ran.filter(pl.col("Total Time(us)").is_not_null() & pl.col("Part Of").is_null())
    # The program's own copies have a scope.
    copies = ran.filter(
        (pl.col("Opcode") == "copy")
        & pl.all_horizontal(pl.col("Scope", "Source").is_null())
        & (pl.col("Output Shape") == pl.col("Input Shapes"))
        & (pl.col("Bytes") >= 2 * _LARGE_ARGUMENT)
        & pl.col("Program").is_in(kept)
    )
    whole, scale = float(ran["Total Time(us)"].sum()), observed.step_ns / max(observed.summary.steps.total_ns, 1)
    copied = float(copies["Total Time(us)"].sum())
    if not copied or not whole:
        return
    # On a host, XLA copies on several threads: what it runs beyond its operators is their wait for each other.
    least = 1000 * copied * scale
    beyond = 0.0 if observed.summary.on_device else max(executing(observed) - 1000 * whole * scale, 0.0)
    gain = least + beyond * copied / whole
    if observed.share(gain) < _TOLD:
        return
    name, shape = str(copies["Program"][0]).removeprefix("jit_"), str(copies["Output Shape"][0])
    moved = sum(count * size for count, size in copies.select("Count", "Bytes").iter_rows())
    finding = Finding(
        cause="arguments-not-donated",
        title=f"{of_step(observed, gain)} {name} copies arrays that it is given, such as {shape}, before it changes "
        "them",
        gain_ns=round(gain), gain_low_ns=round(least), gain_high_ns=round(min(1.1 * gain, observed.step_ns)),
        basis="the copies that XLA inserts, and their part of the time in which it waits for its own threads",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{bytes_text(round(moved / max(observed.summary.steps.count, 1)))} a step are read and "
                     "written by copies that the source does not have", value=float(moved),
                     result="instruction_details", operator=str(copies["Name"][0])),
            Evidence(text=f"{name} is jitted without donate_argnums"),
        ),
        remedy=f"Give the arrays away that {name} replaces: jax.jit({name}, donate_argnums=0), with the places of the "
        "parameters and of the optimizer's state; do not use them after the call.",
        operator=name,
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, {"copies of arguments": gain})
