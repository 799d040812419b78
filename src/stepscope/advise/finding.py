"""A finding: one cause, what its removal saves, how we know, and what to change (``docs/findings.md``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from stepscope.notebook_display import NotebookDisplay

#: Causes of a job that say that its ranks do not fit together. They are told first; most have no gain.
MISFITS = frozenset(
    {
        "missing-rank",
        "duplicate-rank",
        "unequal-steps",
        "unreadable-rank",
        "hung-collective",
        "world-size",
        "different-code",
        "clock-uncalibrated",
    }
)

#: All causes, as ``docs/findings.md`` describes them. A rule of another package may have more.
CAUSES = MISFITS | {
    "data-loader-slow", "padding", "slow-collate", "restarted-workers", "useless-workers", "python-in-step",
    "sleep-in-step", "io-in-step", "lock-wait", "subprocess-in-step", "wait-in-step", "gil-contention",
    "garbage-collection", "host-bound", "synchronising-call", "device-memory-churn", "unpinned-copies",
    "exposed-copies", "exposed-communication", "communication-not-overlapped", "tf32-off", "attention-not-fused",
    "low-clocks", "first-compilation", "recompilation", "double-precision", "slow-half-precision", "denormal-numbers",
    "per-parameter-optimizer", "sample-loop", "many-small-operators", "unneeded-forward", "teacher-with-gradients",
    "growing-graph", "repeated-backward", "frequent-evaluation", "frequent-checkpoint", "frequent-logging",
    "statistics-in-step", "anomaly-mode", "hooks-left-on", "profiler-left-on", "layout-copies",
    "dense-embedding-gradient", "one-hot-product", "recomputation", "unused-parameter-search", "buffer-broadcasts",
    "arguments-not-donated",
    "allocator-page-faults", "growing-memory", "near-memory-limit",
    "too-many-threads", "too-few-threads", "other-processes",
    "small-collectives", "synchronised-batch-norm", "unneeded-collectives",
    "slow-rank", "host-bound-rank", "data-wait-rank", "slow-stage",
    "slow-link", "slower-kernel", "inputs-in-step", "pairwise-broadcast", "unused-results",
    "costly-form", "argument-checks", "repeated-parametrization", "onednn-off",
    "renewed-optimizer",
}  # fmt: skip


#: The cause that belongs to the machine, not to the program: no limit on the program counts it.
OF_THE_MACHINE = "other-processes"


class Confidence(StrEnum):
    """How sure a finding is."""

    MEASURED = "measured"
    LIKELY = "likely"
    POSSIBLE = "possible"


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One number that supports a finding, and where to look.

    Attributes:
        text: One clause with the number in it: “rank 3 arrives last in 96 of 96 all-reduces”.
        value: The number; None where the text names a fact.
        unit: Unit of the number: ns, bytes, %, …; empty for counts.
        result: Name of the result that holds it.
        row: What identifies the row of that result, by column.
        rank: Rank that it was seen on.
        start_ns: Start of the time range to look at, ns since the Unix epoch.
        end_ns: Its end.
        source: ``file:line`` of the program.
        operator: Operator or kernel.
        module: Module of the model, outermost first, separated by ``/``.
    """

    text: str
    value: float | None = None
    unit: str = ""
    result: str | None = None
    row: dict[str, str | int | float | None] = {}
    rank: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    source: str | None = None
    operator: str | None = None
    module: str | None = None


class Finding(NotebookDisplay, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cause of slow steps; see ``docs/findings.md`` for the catalogue of causes.

    Attributes:
        cause: Slug of the catalogue: ``slow-rank``.
        title: One sentence with the number in it.
        gain_ns: Expected gain per step of the repaired program, ns; None if it cannot be computed.
        gain_low_ns: Lower end of its interval.
        gain_high_ns: Upper end.
        step_ns: The step that it is a part of, ns; without what its thread waited for a core, unless that is the gain;
            None if unknown.
        basis: How the gain was computed, in one sentence.
        confidence: How sure it is.
        evidence: The numbers behind it, most telling first; never empty.
        remedy: What to change, in the words and code of the framework in use.
        check: The command that shows afterwards whether it held.
        ranks: Ranks that it concerns; empty for all of them.
        steps: Numbers of the steps that it concerns; empty for all of them.
        operator: Operator, kernel or module that makes a rank slow.
        link: The two ranks of a slow link, in order of their numbers.
        stage: Stage of the pipeline, from 0.
        added_ns: What the rank, link or stage itself takes longer a step than its peers, ns.
    """

    cause: str
    title: str
    gain_ns: int | None = None
    gain_low_ns: int | None = None
    gain_high_ns: int | None = None
    step_ns: int | None = None
    basis: str = ""
    confidence: Confidence = Confidence.LIKELY
    evidence: tuple[Evidence, ...]
    remedy: str
    check: str = ""
    ranks: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    operator: str | None = None
    link: tuple[int, int] | None = None
    stage: int | None = None
    added_ns: int | None = None


class Findings(NotebookDisplay, list[Finding]):
    """The findings of a run, the most important first: a list that shows itself in a notebook."""

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:  # noqa: ANN401, FBT001 - of IPython, which prefers it for lists
        printer.text(self._repr_mimebundle_()["text/plain"])


def by_gain(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, largest expected gain first; those without a known gain keep their order at the end."""
    return sorted(findings, key=lambda finding: -(finding.gain_ns or 0))


def failing(findings: Sequence[Finding], conditions: Sequence[str], step_ns: float | None) -> list[Finding]:
    """Return the findings that meet one of the conditions.

    Args:
        findings: All findings.
        conditions: ``any``, causes, or ``gain:10%``. What other processes of the machine take is met by its name alone.
        step_ns: Time of a step, of which a gain is a share; that of the finding comes first.
    """

    def meets(finding: Finding, condition: str) -> bool:
        if finding.cause == OF_THE_MACHINE:
            return condition == OF_THE_MACHINE
        if condition.startswith("gain:"):
            least = float(condition[len("gain:") : -1]) / 100
            whole = finding.step_ns or step_ns
            return bool(whole) and (finding.gain_ns or 0) >= least * (whole or 0)
        return condition in ("any", finding.cause)

    return [finding for finding in findings if any(meets(finding, condition) for condition in conditions)]
