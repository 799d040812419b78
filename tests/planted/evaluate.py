"""Is the cause of each planted program named first, and how near is its gain? ``python -m tests.planted.evaluate``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.planted.cases import BY_NAME, CASES, Case
from tests.planted.measure import TrueTimes, profiled, true_times

#: A finding on a healthy twin whose measured gain is at least this share of the step would not be false.
WORTH = 0.1
#: The predicted gain counts as right within this factor of the true one.
FACTOR = 1.5
#: A program whose measured gain is a smaller share of the step has no cause on this machine: nothing should be told.
CAUSED = 0.07
#: What is said of a busy machine.
_BUSY = "other-processes"


def judge(case: Case, times: TrueTimes, planted: list[dict[str, Any]], healthy: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is known of a program: its true times, its findings, and whether they are right."""
    if not case.waits:  # that other programs have the cores is true, and not what was planted
        planted, healthy = ([one for one in found if one["cause"] != _BUSY] for found in (planted, healthy))
    first = planted[0] if planted else None
    named = first is not None and first["cause"] in case.causes
    gain = first.get("gain_ns") if first else None
    step = first.get("step_ns") if first else None
    share = times.gain / times.step
    return {
        "program": case.name,
        "step_ms": times.step / 1e6,
        "true_gain_ms": times.gain / 1e6,
        "true_gain_share": share,
        "caused": times.gain >= CAUSED * times.step,
        "first": first["cause"] if first else None,
        "named": named,
        "listed": any(finding["cause"] in case.causes for finding in planted),
        "gain_ms": None if gain is None else gain / 1e6,
        "gain_right": named and gain is not None and 1 / FACTOR <= gain / max(times.gain, 1.0) <= FACTOR,
        "share_right": named and gain and step and 1 / FACTOR <= gain / step / max(share, 1e-9) <= FACTOR,
        "on_twin": [finding["cause"] for finding in healthy],
        "planted": times.planted,
        "repaired": times.repaired,
    }


def evaluate(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Measure a program and profile it and its twin."""
    times = true_times(case, options.repeats, options.steps)
    if options.true_only:
        return judge(case, times, [], [])
    planted, _ = profiled(case, options.output / case.name, options.steps, repaired=False)
    healthy, _ = profiled(case, options.output / f"{case.name}-repaired", options.steps, repaired=True)
    return judge(case, times, planted.get("findings", []), healthy.get("findings", []))


def line(row: dict[str, Any]) -> str:
    """Return a row as text."""
    gain = "–" if row["gain_ms"] is None else f"{row['gain_ms']:.2f}"
    twin = ", ".join(row["on_twin"]) or "–"
    mark = "ok" if row["named"] else "listed" if row["listed"] else "NOT" if row["caused"] else "none"
    near = "ok" if row["gain_right"] else "–"
    return (
        f"{row['program']:<22} {row['step_ms']:8.2f} ms  "
        f"gain {row['true_gain_ms']:8.2f} ms ({row['true_gain_share']:4.0%})  "
        f"{mark:<6} {row['first'] or '–':<26} predicted {gain:>8} {near:<3} twin: {twin}"
    )


def main() -> None:
    """Read the command line, evaluate, and print a line a program and the totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", choices=sorted(BY_NAME), action="append", help="only this one; may be repeated")
    parser.add_argument("--framework", choices=sorted({case.framework for case in CASES}), help="only its programs")
    parser.add_argument("--repeats", type=int, default=3, help="runs a side that measure the true gain")
    parser.add_argument("--steps", type=int, help="steps of each run instead of the program's own number")
    parser.add_argument("--true-only", action="store_true", help="only measure the true gain")
    parser.add_argument("--json", type=Path, help="append a line a program to this file")
    parser.add_argument("--output", type=Path, default=Path(tempfile.gettempdir()) / "planted", help="where runs go")
    options = parser.parse_args()
    cases = [BY_NAME[name] for name in options.program] if options.program else CASES
    rows = []
    for case in cases:
        if options.framework and case.framework != options.framework:
            continue
        try:
            rows.append(evaluate(case, options))
        except RuntimeError as error:
            print(f"{case.name:<22} failed: {error}", file=sys.stderr)
            continue
        print(line(rows[-1]), flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    if rows and not options.true_only:
        false = [row for row in rows if row["on_twin"]]
        without = len(rows) - len(caused := [row for row in rows if row["caused"]])
        print(
            f"{len(rows)} programs, {without} without a cause on this machine; of the others: cause first in "
            f"{sum(row['named'] for row in caused)}, gain within × {FACTOR} in "
            f"{sum(row['gain_right'] for row in caused)}, as a part of the step in "
            f"{sum(bool(row['share_right']) for row in caused)}; findings on {len(false)} twins"
        )


if __name__ == "__main__":
    main()
