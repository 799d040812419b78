"""Where operators were called: their Python stack and module; of the backward pass, those of the forward operator."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analyse.operators.operator_calls import by_depth, device_time, host_operators, in_order, rows_of
from stepscope.analyse.operators.shown_names import modules_in
from stepscope.analyse.step.activity import Rows, on_tracks
from stepscope.trace.tables import Tables, columns_of, has_rows, shared

_SCHEMA: dict[str, pl.DataType] = {
    "id": pl.Int64(), "name": pl.Categorical(), "phase": pl.String(), "stack": pl.Int64(), "module": pl.String(),
    "host": pl.Int64(), "device": pl.Int64(),
}  # fmt: skip
#: What PyTorch's engine calls the operator around the one that has the forward operator's number.
_ENGINE = "autograd::engine::evaluate_function"


@shared
def call_sites(tables: Tables) -> pl.DataFrame:
    """Return one row per operator on a host thread, and per run of a compiled instruction on a device's stream.

    Columns: id, name, phase; ``stack``, the number of the Python stack that called it, and ``module``, its module,
    outermost first; ``host`` and ``device``, its self time in ns and that of the device work it launched itself. What
    an operator does not say is that of the operator around it. A backward operator has the stack and the module of the
    forward operator that it belongs to, because its own stack is that of the call of ``backward``.
    """
    operators = host_operators(tables)
    device, _ = device_time(tables, operators)
    details = in_order(columns_of(tables, "operators", "span", "stack", "instruction", "module").rename({"span": "id"}))
    modules = _modules(tables, details)
    texts = modules.drop_nulls().unique().sort()
    codes = modules.cast(pl.Enum(texts)).to_physical().cast(pl.Int64)
    place, forward = rows_of(details["id"], operators["id"]), _forward(tables, operators)
    stack, module = (
        _inherited(np.append(said.fill_null(-1).to_numpy(), -1)[place], operators, forward)
        for said in (details["stack"], codes)
    )
    spans = in_order(columns_of(tables, "spans", "id", "phase"))
    rows = pl.DataFrame([
        operators["id"], operators["name"], spans["phase"][rows_of(spans["id"], operators["id"])].cast(pl.String),
        _or_null("stack", stack), texts.gather(_or_null("", module)).alias("module"),
        operators["self"].alias("host"), pl.Series("device", device, pl.Int64),
    ])  # fmt: skip
    return pl.concat([rows.cast(_SCHEMA), _on_streams(tables, details, modules)])  # type: ignore[arg-type]


def _or_null(name: str, codes: Rows) -> pl.Series:
    return pl.Series(name, codes, pl.Int64).set(pl.Series(codes < 0), None)


def _modules(tables: Tables, details: pl.DataFrame) -> pl.Series:
    """Return the module of each row of ``operators``: what it says, else the names in its instruction's scope."""
    said = details["module"].cast(pl.String)
    if not has_rows(tables, "instructions") or details["instruction"].null_count() == len(details):
        return said
    known = in_order(columns_of(tables, "instructions", "id", "scope"))
    scopes = known["scope"].cast(pl.String)
    names = {scope: "/".join(modules_in(scope)) or None for scope in scopes.unique().to_list()}
    of_instruction = pl.Series([names[scope] for scope in scopes.to_list()] + [None], dtype=pl.String)
    return said.zip_with(said.is_not_null(), of_instruction[rows_of(known["id"], details["instruction"]).tolist()])


def _forward(tables: Tables, operators: pl.DataFrame) -> Rows:
    """Return the row of the forward operator that each backward operator belongs to; -1 where there is none."""
    flows = columns_of(tables, "flows", "from", "to", "kind")
    flows = flows.filter(flows["kind"] == "forward_backward")
    found = np.full(len(operators), -1, np.int64)
    forward, backward = (rows_of(operators["id"], flows[end]) for end in ("from", "to"))
    both = (forward >= 0) & (backward >= 0)
    found[backward[both]] = forward[both]
    around = operators["outer"].to_numpy()[backward[both]]
    engine = operators["name"].cast(pl.String).str.starts_with(_ENGINE).to_numpy()
    wrapped = (around >= 0) & np.append(engine, False)[around]
    found[around[wrapped]] = forward[both][wrapped]
    return found


def _inherited(said: Rows, operators: pl.DataFrame, forward: Rows) -> Rows:
    """Return what each operator says, else the one around it; within backward operators, what their forward ones say.

    Args:
        said: A number for each operator, -1 where it says nothing.
        operators: What :func:`host_operators` returned.
        forward: What :func:`_forward` returned.
    """
    outer, levels = operators["outer"].to_numpy(), by_depth(operators["depth"])
    own = said.copy()
    for level in levels[1:]:
        inner = level[(own[level] < 0) & (outer[level] >= 0)]
        own[inner] = own[outer[inner]]
    backward = np.where(forward >= 0, own[forward], -1) if len(own) else own
    for level in levels[1:]:
        inner = level[(backward[level] < 0) & (outer[level] >= 0)]
        backward[inner] = backward[outer[inner]]
    return np.where(backward >= 0, backward, own)


def _on_streams(tables: Tables, details: pl.DataFrame, modules: pl.Series) -> pl.DataFrame:
    """Return the runs of compiled instructions on devices: each is an operator and its kernel at once."""
    if details["instruction"].null_count() == len(details):
        return pl.DataFrame(schema=_SCHEMA)
    spans = columns_of(tables, "spans", "id", "track", "name", "phase", "dur")
    rows = np.flatnonzero(on_tracks(tables, "stream"))
    known = details.select("id", "instruction", "stack").with_columns(modules.alias("module"))
    found = spans[rows].join(known.filter(pl.col("instruction").is_not_null()), on="id", how="inner")
    shown = found.with_columns(host=pl.lit(0, pl.Int64), device="dur").select(*_SCHEMA)
    return shown.cast(_SCHEMA)  # type: ignore[arg-type]
