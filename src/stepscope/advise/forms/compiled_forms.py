"""Costly forms in programs that XLA compiles, by the graph of their instructions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import polars as pl

from stepscope.advise.calls import outermost
from stepscope.advise.forms import Form
from stepscope.advise.observed import Observed
from stepscope.trace.tables import columns_of

#: Instructions that pass on what they take, or a part of a tuple of it; the one that takes a part of its numbers.
_PASS, _PART = ("get-tuple-element", "bitcast", "copy", "reshape", "parameter"), "slice"
#: Of sorted numbers, what is used is at most this part.
_FEW = 0.25
#: Copies of fewer bytes, read and written, or in loops of fewer rounds, are not told.
_LARGE, _ROUNDS = 1 << 15, 8
#: Elements of a gradient from which on it is looked at, and part of the gradients' elements that no program takes.
_GRADIENT, _UNUSED = 1024, 0.2
#: Instructions by which a program may have weights of its own, or makes random numbers; the program of a permutation.
_LAYERS, _RANDOM = ("dot", "convolution", "custom-call"), ("xor", "rng", "rng-bit-generator")
_PERMUTES = "jit__shuffle"


class _Instruction(NamedTuple):
    """A row of the table ``instructions``; ``takes`` are names."""

    id: int
    name: str
    opcode: str
    parent: int | None
    phase: str | None
    shape: str
    takes: tuple[str, ...]
    bytes: int
    source: str

    @property
    def elements(self) -> int:
        """Elements of the result, of the first of several: ``(f32[128,1024], u32[128,1024])``; 0 if unknown."""
        _, found, sizes = self.shape.partition("]")[0].partition("[")
        numbers = sizes.split(",") if sizes else []
        return prod(map(int, numbers)) if found and all(number.isdigit() for number in numbers) else 0


class _FoundForm(NamedTuple):
    """A costly form: where it is, the ids of its instructions, and what :class:`Form` says of it."""

    where: _Instruction
    ids: set[int]
    part: float
    cause: str
    title: str
    remedy: str


@dataclass(frozen=True)
class _Program:
    """A compiled program: its name and its instructions, in the order of the file."""

    name: str
    instructions: Sequence[_Instruction]

    @cached_property
    def by_name(self) -> dict[str, _Instruction]:
        return {one.name: one for one in self.instructions}

    @cached_property
    def entry(self) -> dict[str, _Instruction]:
        """The instructions that stand in no other one."""
        return {one.name: one for one in self.instructions if one.parent is None}

    @cached_property
    def users(self) -> dict[str, list[_Instruction]]:
        """Instructions that take the result of each, by its name."""
        found = defaultdict(list)
        for one in self.instructions:
            for name in one.takes:
                found[name].append(one)
        return dict(found)

    def takers(self, instruction: _Instruction) -> list[_Instruction]:
        """Return what takes the numbers of a result, through what passes them on."""
        waiting = [instruction.name]
        seen, found = set(waiting), []
        while waiting:
            for user in self.users.get(waiting.pop(), []):
                if user.opcode not in _PASS:
                    found += [user] if user.opcode != "fusion" else []  # its parameters are users, too
                elif user.name not in seen:
                    seen.add(user.name)
                    waiting.append(user.name)
        return found

    @cached_property
    def outputs(self) -> list[_Instruction]:
        """The instructions whose results the program gives back; empty if that is not known."""
        roots = [one for one in self.entry.values() if one.name not in self.users and one.opcode != "parameter"]
        if len(roots) == 1 and roots[0].opcode == "tuple":
            return [self.by_name[name] for name in roots[0].takes if name in self.by_name]
        return roots if len(roots) == 1 else []

    @cached_property
    def results(self) -> set[str]:
        """The shapes of what it gives back, but for integers without a sign, such as the keys of random numbers."""
        return {one.shape for one in self.outputs if not one.shape.startswith("u")}

    @cached_property
    def arguments(self) -> set[str]:
        """The shapes of its parameters."""
        return {one.shape for one in self.entry.values() if one.opcode == "parameter"}

    @cached_property
    def trains(self) -> bool:
        """Whether it contains a backward."""
        return any(one.phase == "backward" for one in self.instructions)

    def has(self, opcodes: Sequence[str]) -> bool:
        """Return whether one of its instructions is of these operations."""
        return any(one.opcode in opcodes for one in self.instructions)

    def phase_of(self, instruction: _Instruction) -> str | None:
        """Return the phase of a result, or, of a copy that the compiler inserts, of what it copies."""
        seen: set[str] = set()
        while instruction.phase is None and instruction.name not in seen and len(instruction.takes) == 1:
            seen.add(instruction.name)  # a damaged program may go in a circle
            instruction = self.by_name.get(instruction.takes[0], instruction)
        return instruction.phase

    def only_for(self, outputs: Sequence[_Instruction]) -> set[int]:
        """Return the ids of the instructions of the entry that nothing but these outputs needs."""
        waiting = [one.name for one in self.outputs if one not in outputs]
        needed = set(waiting)
        while waiting:
            taken = self.entry[name].takes if (name := waiting.pop()) in self.entry else ()
            waiting += [one for one in taken if one not in needed]
            needed.update(taken)
        return {one.id for one in self.entry.values() if one.name not in needed and one.opcode != "tuple"}


def compiled_forms(observed: Observed, calls: pl.DataFrame) -> list[Form]:
    """Return the costly forms of the compiled programs that ran in the recorded steps.

    Args:
        observed: The rank.
        calls: The operator calls of its recorded steps.
    """
    ran = columns_of(observed.tables, "operators", "span", "instruction").drop_nulls()
    ran = calls.join(ran.rename({"span": "id"}), on="id", how="inner", maintain_order="left")
    programs = _programs(observed, ran) if len(ran) else []
    rounds = ran.group_by("instruction").agg(each=pl.len() / pl.col("step").n_unique())
    often = set(rounds.filter(pl.col("each") >= _ROUNDS)["instruction"])
    of_model, forms = _results_of_model(programs), []
    for program in programs:
        taken = {shape for other in programs if other is not program for shape in other.arguments}
        for found in (
            *_sorts(program),
            *_copies(program, often),
            *_gradients(program, taken),
            *_on_data(program, of_model),
        ):
            mine = ran.filter(pl.col("instruction").is_in(list(found.ids)))
            if mine.is_empty():
                continue
            file, _, line = found.where.source.rpartition(":")
            at = f": {observed.place(file, int(line))}" if file and line.isdigit() else ""
            chosen = outermost(calls, mine.select(calls.columns))
            forms.append(Form(found.cause, chosen, found.part, f"{found.title}{at}", found.remedy, backward=False))
    return forms


def _programs(observed: Observed, ran: pl.DataFrame) -> list[_Program]:
    """Return the programs of which an instruction ran."""
    text = [pl.col(name).cast(pl.String).fill_null("") for name in ("name", "opcode", "shape", "source", "takes")]
    known = columns_of(observed.tables, "instructions", "program", "program_id", *_Instruction._fields)
    there = known.filter(pl.col("id").is_in(ran["instruction"].implode()))["program_id"].unique()
    known = known.filter(pl.col("program_id").is_in(there.implode())).with_columns(
        *text, pl.col("program", "phase").cast(pl.String), pl.col("bytes").fill_null(0)
    )
    return [
        _Program(
            str(part["program"][0]),
            [
                _Instruction(**row | {"takes": tuple(filter(None, row["takes"].split(", ")))})
                for row in part.select(_Instruction._fields).iter_rows(named=True)
            ],
        )
        for part in known.partition_by("program_id", maintain_order=True)
    ]


def _sorts(program: _Program) -> Iterator[_FoundForm]:
    """Yield sorts of whose results all that is taken is a slice."""
    for one in program.instructions:
        if one.opcode != "sort":
            continue
        values = one.shape.strip("(").partition("]")[0] + "]"
        # What was sorted along, such as places, is for the backward.
        results = [user for user in program.users.get(one.name, []) if user.shape == values] or [one]
        takers = [taker for result in results for taker in program.takers(result)]
        used = max((taker.elements for taker in takers), default=0)
        if takers and all(taker.opcode == _PART for taker in takers) and used <= _FEW * one.elements:
            yield _FoundForm(
                one, {one.id}, 0.9, "unused-results",
                f"{one.elements:,} numbers are sorted, of which {used:,} are used",
                "jax.lax.top_k(x, k) gives the k largest of each row in their order; the smallest are those of -x.",
            )  # fmt: skip


def _copies(program: _Program, often: set[int]) -> Iterator[_FoundForm]:
    """Yield copies of whole arrays in the rounds of a loop; ``often`` are instructions that run as often as one."""
    loops = {one.id: one for one in program.instructions if one.opcode == "while"}
    copies: dict[int, list[_Instruction]] = defaultdict(list)
    for one in program.instructions:
        if one.opcode == "copy" and one.id in often and one.bytes >= _LARGE and one.parent in loops:
            copies[one.parent].append(one)
    for loop, inside in copies.items():
        largest = max(inside, key=lambda one: one.bytes)
        yield _FoundForm(
            loops[loop], {one.id for one in inside}, 0.9, "costly-form",
            f"each round of a loop copies {largest.shape}",
            "Give what each round makes back as the second result of the body, which lax.scan stacks, instead of "
            "writing it into the carry (.at[i].set); do not read in a round what it also writes.",
        )  # fmt: skip


def _gradients(program: _Program, taken: set[str]) -> Iterator[_FoundForm]:
    """Yield gradients that a program gives back and no other program takes, by the shapes that others take."""
    gradients = [one for one in program.outputs if program.phase_of(one) == "backward"]
    large = [one for one in gradients if one.elements >= _GRADIENT]
    unused = [one for one in large if one.shape not in taken]
    whole, none = (sum(one.elements for one in some) for some in (gradients, unused))
    if len(unused) == len(large) or none < _UNUSED * whole:  # if none is taken, they are new weights
        return
    small = [one for one in gradients if one.elements < _GRADIENT and one.shape not in taken]
    largest = max(unused, key=lambda one: one.elements)
    yield _FoundForm(
        largest, program.only_for([*unused, *small]), 1.0, "teacher-with-gradients",
        f"{program.name.removeprefix('jit_')} computes {len(unused)} gradients that no program takes, such as "
        f"{largest.shape}",
        "Differentiate by what is trained alone: jax.value_and_grad(lambda head: loss({**parameters, 'head': head}, x, "
        "y))(parameters['head']). Inside of one jit, XLA leaves out what is not given back.",
    )  # fmt: skip


def _results_of_model(programs: Sequence[_Program]) -> set[str]:
    """Return the shapes of what programs that train give back, and what programs make of such results."""
    shapes, before = {shape for one in programs if one.trains for shape in one.results}, -1
    while len(shapes) > before:
        before = len(shapes)
        shapes |= {shape for one in programs if one.arguments & shapes for shape in one.results}
    return shapes


def _on_data(program: _Program, of_model: set[str]) -> Iterator[_FoundForm]:
    """Yield a whole program that takes no result in which the model has a part, by the shapes of such results.

    A layer may have weights that are not trained, and random numbers are new in each step: neither is data alone.
    """
    permutes = program.name == _PERMUTES
    if not of_model or program.trains or program.arguments & of_model or program.has(_LAYERS):
        return
    if program.has(_RANDOM) and not permutes:
        return
    where = next((one for one in program.instructions if one.source), program.instructions[0])
    yield _FoundForm(
        where, {one.id for one in program.instructions}, 0.95, "inputs-in-step",
        f"go into {program.name.removeprefix('jit_')}, a program on data alone, in which no parameter has a part",
        "Draw rows with jax.random.randint(key, (batch,), 0, n), or go through one permutation in each epoch."
        if permutes else
        "Compute what is the same in each step once, before the loop; of a set of data only the rows that the step "
        "takes; the rest where batches are made.",
    )  # fmt: skip
