"""The rules: each looks at one rank and yields claims. One file holds one family of causes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stepscope.advise.claims import Claim
from stepscope.advise.forms.small_iterations import small_iterations
from stepscope.advise.observed import Observed
from stepscope.advise.rules.besides_rules import besides_training, statistics
from stepscope.advise.rules.collective_rules import collectives, data_parallel
from stepscope.advise.rules.data_rules import data_loading, padding
from stepscope.advise.rules.dispatch_rules import dispatch, written_update
from stepscope.advise.rules.graph_rules import graphs
from stepscope.advise.rules.kernel_rules import kernels
from stepscope.advise.rules.loop_rules import element_reads, loops
from stepscope.advise.rules.machine_rules import machine_use
from stepscope.advise.rules.memory_rules import memory_moves
from stepscope.advise.rules.number_rules import number_types
from stepscope.advise.rules.part_rules import compiling, device_parts
from stepscope.advise.rules.python_rules import python_code
from stepscope.advise.rules.settings_rules import settings_left_on

#: All rules. Their order does not matter: the deeper cause and the larger gain come first.
RULES: tuple[Callable[[Observed], Iterable[Claim]], ...] = (
    data_loading,
    padding,
    python_code,
    element_reads,
    compiling,
    device_parts,
    settings_left_on,
    graphs,
    dispatch,
    small_iterations,
    number_types,
    memory_moves,
    besides_training,
    statistics,
    machine_use,
    collectives,
    data_parallel,
    kernels,
    loops,
    written_update,
)
