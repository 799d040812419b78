"""Groups of devices that communicate, in the forms in which compiled programs write them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np

from stepscope.read.common.nesting import Integers
from stepscope.read.common.protobuf import Fields, Messages
from stepscope.read.xplane.hlo.hlo_shapes import grouped, numbers

#: More devices, or more dimensions of a mesh, than these are damage.
_MOST_DEVICES = 1 << 20
_MOST_DIMENSIONS = 32


def device_groups(fields: Fields) -> list[list[list[int]]]:
    """Return the groups of devices of each operation; of a permutation its pairs; empty where it does not say."""
    number = len(fields.messages)
    owners, lists = fields.within(87)
    of = lists.fields()
    result: list[list[list[int]]] = [[] for _ in range(number)]
    everyone = np.arange(number)
    written = (
        (everyone, _listed(fields, 49)),
        (everyone, _iota(fields, 92)),
        (everyone, _meshes(fields)),
        (owners, _listed(of, 1)),
        (owners, _iota(of, 2)),
    )
    for found_in, found in written:
        for place, groups in zip(found_in.tolist(), found, strict=True):
            result[place] = result[place] or groups
    pairs = _pairs(fields)
    return [groups or pair for groups, pair in zip(result, pairs, strict=True)]


def _listed(fields: Fields, number: int) -> list[list[list[int]]]:
    """Return groups that are written out."""
    owners, groups = fields.within(number)
    return grouped(owners, numbers(groups.fields(), 1), len(fields.messages))


def _iota(fields: Fields, number: int) -> list[list[list[int]]]:
    """Return groups that are written as devices counted from 0, in a shape whose dimensions are exchanged."""
    owners, messages = fields.within(number)
    of = messages.fields()
    sizes = zip(of.integers(1).fill_null(0), of.integers(2).fill_null(0), strict=True)
    found = [
        groups_counted(*size, dims, order)
        for size, dims, order in zip(sizes, numbers(of, 3), numbers(of, 4), strict=True)
    ]
    lists = grouped(owners, found, len(fields.messages))
    return [one[-1] if one else [] for one in lists]


def groups_counted(groups: int, size: int, dims: Sequence[int], order: Sequence[int]) -> list[list[int]]:
    """Return groups of devices that are counted in a shape with exchanged dimensions; none if the sizes disagree."""
    total = groups * size
    if not 0 < total <= _MOST_DEVICES or groups < 1 or not 0 < len(dims) <= _MOST_DIMENSIONS or min(dims) < 1:
        return []
    if prod(dims) != total or sorted(order) != list(range(len(dims))):
        return []
    devices = np.arange(total).reshape(dims).transpose(order).reshape(groups, size)
    result: list[list[int]] = devices.tolist()
    return result


def _meshes(fields: Fields) -> list[list[list[int]]]:
    """Return groups that are written as axes of a mesh of devices, or parts of such axes."""
    owners, messages = fields.within(93)
    of = messages.fields()
    meshes, inner = of.within(1)
    axes, sizes = inner.fields().within(1)
    length = grouped(meshes[axes], sizes.fields().integers(2).fill_null(0).to_list(), len(messages))
    order = grouped(meshes, numbers(inner.fields(), 2), len(messages))
    found = [
        groups_along(dims, devices[-1] if devices else [], named)
        for dims, devices, named in zip(length, order, _axes(of), strict=True)
    ]
    lists = grouped(owners, found, len(fields.messages))
    return [one[-1] if one else [] for one in lists]


def _axes(fields: Fields) -> list[list[tuple[int, int, int]]]:
    """Return the axes that groups lie along: number, and of a part the product of the parts before it, and its size."""
    owners, axes = fields.within(2)
    of = axes.fields()
    places, parts = of.within(2)
    part = {place: (before, size) for place, before, size in _parts(places, parts)}
    found = [(axis, *part.get(n, (1, 0))) for n, axis in enumerate(of.integers(1).fill_null(0).to_list())]
    return grouped(owners, found, len(fields.messages))


def _parts(places: Integers, parts: Messages) -> list[tuple[int, int, int]]:
    of = parts.fields()
    before, size = of.integers(1).fill_null(0).to_list(), of.integers(2).fill_null(0).to_list()
    return list(zip(places.tolist(), before, size, strict=True))


def groups_along(dims: Sequence[int], devices: Sequence[int], axes: Sequence[tuple[int, int, int]]) -> list[list[int]]:
    """Return the groups that lie along axes of a mesh; none where the axes do not fit it."""
    total = prod(dims)
    fits = 0 < total <= _MOST_DEVICES and min(dims, default=0) >= 1 and len(devices) in (0, total)
    if not fits or any(not 0 <= axis < len(dims) for axis, _, _ in axes):
        return []
    whole = [(axis, before, size or dims[axis]) for axis, before, size in axes]
    cuts = [{1, size} | {c for a, b, s in whole if a == axis for c in (b, b * s)} for axis, size in enumerate(dims)]
    edges = [(axis, *pair) for axis, cut in enumerate(cuts) for pair in pairwise(sorted(cut))]
    if any(low < 1 or high % low or high > dims[axis] for axis, low, high in edges) or len(edges) > _MOST_DIMENSIONS:
        return []
    within = [
        n for a, b, s in whole for n, (axis, low, high) in enumerate(edges) if axis == a and b <= low < high <= b * s
    ]
    if len(set(within)) != len(within):
        return []
    size = prod(edges[n][2] // edges[n][1] for n in within)
    mesh = np.array(devices or range(total)).reshape([high // low for _, low, high in edges])
    others = [n for n in range(len(edges)) if n not in within]
    result: list[list[int]] = mesh.transpose([*others, *within]).reshape(total // size, size).tolist()
    return result


def _pairs(fields: Fields) -> list[list[list[int]]]:
    owners, pairs = fields.within(52)
    of = pairs.fields()
    found = [list(pair) for pair in zip(of.integers(1).fill_null(0), of.integers(2).fill_null(0), strict=True)]
    return grouped(owners, found, len(fields.messages))
