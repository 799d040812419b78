"""What is known of Paddle on both sides: where programs are recorded, and where recordings are read."""

from __future__ import annotations

#: Operators that update parameters, without the ``pd_op.`` and the ``_`` of newer programs, which do not say what an
#: operator is for.
UPDATES = frozenset((
    "adadelta", "adagrad", "adam", "adamax", "adamw", "asgd", "decayed_adagrad", "distributed_fused_lamb",
    "dgc_momentum", "dpsgd", "ftrl", "fused_adam", "lamb", "lars_momentum", "merged_adam", "merged_momentum",
    "momentum", "nadam", "radam", "rmsprop", "rprop", "sgd", "sparse_momentum",
))  # fmt: skip
#: The name of a range that says the inputs of the operator in it begins so; JSON follows.
SAYS_INPUTS = "stepscope inputs "
