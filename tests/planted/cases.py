"""The planted programs: what may be named as the cause, and how they are run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PROGRAMS = Path(__file__).parent / "programs"


class Case(NamedTuple):
    """One program with a planted cause.

    Attributes:
        name: Stem of its file.
        causes: Slugs of the catalogue, each of which names the cause.
        framework: Whose environment runs it.
        cores: How many cores it gets.
        ranks: How many processes train.
        waits: Whether waiting for a core is what the cause costs, so that it counts.
    """

    name: str
    causes: frozenset[str]
    framework: str = "torch"
    cores: int = 1
    ranks: int = 1
    waits: bool = False

    @property
    def path(self) -> Path:
        """Return the file of the program."""
        return PROGRAMS / f"{self.name}.py"


def _case(
    name: str, *causes: str, framework: str = "torch", cores: int = 1, ranks: int = 1, waits: bool = False
) -> Case:
    return Case(name, frozenset(causes), framework, cores, ranks, waits)


CASES = (
    _case("slow_sample", "data-loader-slow"),
    _case("slow_collate", "slow-collate", "data-loader-slow"),
    _case("no_workers", "data-loader-slow", cores=2),
    _case("useless_workers", "useless-workers", cores=2),
    _case("restarted_workers", "restarted-workers", "data-loader-slow", "useless-workers", cores=2),
    _case("sample_loop", "sample-loop", "many-small-operators"),
    _case("tiny_operators", "many-small-operators", "sample-loop"),
    _case("optimizer_loop", "per-parameter-optimizer"),
    _case("own_optimizer", "per-parameter-optimizer", "many-small-operators"),
    _case("written_lamb", "per-parameter-optimizer"),
    _case("single_states", "sample-loop", "many-small-operators"),
    _case("small_parts", "many-small-operators", "sample-loop"),
    _case("small_networks", "many-small-operators"),
    _case("graph_nodes", "many-small-operators", "sample-loop"),
    _case("transport_plan", "many-small-operators"),
    _case("iterator_each_step", "data-loader-slow"),
    _case("clip_by_hand", "many-small-operators", "python-in-step"),
    _case("loss_by_sample", "many-small-operators", "sample-loop"),
    _case("metric_by_item", "python-in-step"),
    _case("model_states", "python-in-step", "many-small-operators"),
    _case("printed_tensors", "python-in-step"),
    _case("tokenizer", "python-in-step"),
    _case("model_copies", "python-in-step", "many-small-operators"),
    _case("weight_statistics", "statistics-in-step", "frequent-logging"),
    _case("json_log", "python-in-step", "frequent-logging"),
    _case("collect_each_step", "garbage-collection"),
    _case("cyclic_garbage", "garbage-collection", "python-in-step"),
    _case("recompiled_shapes", "recompilation"),
    _case("compile_in_loop", "recompilation"),
    _case("growing_graph", "growing-graph"),
    _case("kept_losses", "growing-memory", "growing-graph"),
    _case("growing_memory", "growing-memory"),
    _case("growing_copies", "growing-memory"),
    _case("repeated_backward", "repeated-backward"),
    _case("second_forward", "unneeded-forward"),
    _case("permuted_rows", "inputs-in-step"),
    _case("stacked_rows", "inputs-in-step", "python-in-step"),
    _case("product_diagonal", "unused-results"),
    _case("sorted_losses", "unused-results"),
    _case("all_items", "unused-results"),
    _case("sorted_quantile", "unused-results"),
    _case("ignored_labels", "unused-results"),
    _case("last_states", "unused-results"),
    _case("enlarged_images", "costly-form"),
    _case("product_spectra", "costly-form"),
    _case("growing_sequences", "costly-form"),
    *(
        _case(name, "costly-form")
        for name in (
            *("diagonal_matrix", "product_order", "inverted_matrix", "singular_values", "written_convolution"),
            *("bounded_embedding", "copied_queue", "written_softmax"),
            *("diagonal_covariance", "edge_layers", "single_sequences", "separate_derivatives"),
            "masked_experts",
        )
    ),
    _case("broadcast_form", "pairwise-broadcast"),
    _case("checked_distributions", "argument-checks"),
    _case("renewed_optimizer", "renewed-optimizer"),
    _case("onednn_off", "onednn-off"),
    _case("orthogonal_steps", "repeated-parametrization"),
    _case("copied_state", "many-small-operators", "python-in-step"),
    _case("shuffled_set", "inputs-in-step"),
    _case("teacher_gradients", "teacher-with-gradients"),
    _case("attached_generator", "teacher-with-gradients"),
    _case("recomputation", "recomputation"),
    _case("one_hot_product", "one-hot-product"),
    _case("plain_attention", "attention-not-fused"),
    _case("pairwise_distances", "pairwise-broadcast"),
    _case("frequent_evaluation", "frequent-evaluation"),
    _case("frequent_checkpoint", "frequent-checkpoint"),
    _case("double_precision", "double-precision"),
    _case("half_precision", "slow-half-precision"),
    _case("autocast_half", "slow-half-precision"),
    _case("denormals", "denormal-numbers"),
    _case("vanishing_traces", "denormal-numbers"),
    _case("layout_copies", "layout-copies"),
    _case("dense_embedding", "dense-embedding-gradient"),
    _case("padding", "padding"),
    _case("anomaly_mode", "anomaly-mode"),
    _case("statistics_hooks", "hooks-left-on"),
    _case("profiler_left_on", "profiler-left-on"),
    _case("one_thread", "too-few-threads", cores=2),
    _case("many_threads", "too-many-threads", cores=2),
    _case("crowded_threads", "too-many-threads", cores=2, waits=True),
    _case("page_faults", "allocator-page-faults"),
    _case("busy_thread", "gil-contention"),
    _case("sleep_each_step", "sleep-in-step"),
    _case("posted_metrics", "io-in-step"),
    _case("stop_script", "subprocess-in-step"),
    _case("held_lock", "lock-wait"),
    _case("busy_machine", "other-processes", cores=2, waits=True),
    _case("small_collectives", "small-collectives", cores=2, ranks=2),
    _case("exchanged_statistics", "small-collectives", cores=2, ranks=2),
    _case("small_buckets", "small-collectives", cores=2, ranks=2),
    _case("buffer_broadcasts", "buffer-broadcasts", cores=2, ranks=2),
    _case("barriers", "unneeded-collectives", "small-collectives", cores=2, ranks=2),
    _case("slow_rank", "slow-rank", cores=2, ranks=2),
    _case("synchronised_parts", "unneeded-collectives", cores=2, ranks=2),
    _case("rank_checkpoint", "frequent-checkpoint", cores=2, ranks=2),
    _case("jax_jit_in_loop", "recompilation", framework="jax"),
    _case("jax_shapes", "recompilation", framework="jax"),
    _case("jax_small_calls", "many-small-operators", framework="jax"),
    _case("jax_slow_batches", "python-in-step", "data-loader-slow", framework="jax"),
    _case("jax_generator", "data-loader-slow", framework="jax"),
    _case("jax_unjitted", "many-small-operators", framework="jax"),
    _case("jax_augment", "python-in-step", "data-loader-slow", framework="jax"),
    _case("jax_dataset_copy", "python-in-step", framework="jax"),
    _case("jax_double_precision", "double-precision", framework="jax"),
    _case("jax_callback", "python-in-step", framework="jax"),
    _case("jax_not_donated", "arguments-not-donated", framework="jax"),
    _case("jax_evaluation", "frequent-evaluation", framework="jax"),
    _case("jax_sorted", "unused-results", framework="jax"),
    _case("jax_permutation", "inputs-in-step", framework="jax"),
    _case("jax_frozen", "teacher-with-gradients", framework="jax"),
    _case("jax_norms", "python-in-step", "many-small-operators", framework="jax"),
    _case("mindspore_pynative", "many-small-operators", framework="mindspore"),
    _case("mindspore_own_update", "per-parameter-optimizer", framework="mindspore"),
    _case("mindspore_sample_loop", "sample-loop", "many-small-operators", framework="mindspore"),
    _case("mindspore_jit_in_loop", "recompilation", framework="mindspore"),
    _case("mindspore_slow_data", "data-loader-slow", "python-in-step", framework="mindspore", cores=2),
    _case("paddle_dynamic", "many-small-operators", framework="paddle"),
    _case("paddle_slow_sample", "data-loader-slow", framework="paddle"),
    _case("paddle_metric", "python-in-step", framework="paddle"),
    _case("paddle_time_steps", "many-small-operators", framework="paddle"),
    _case("paddle_row_loss", "many-small-operators", framework="paddle"),
    _case("paddle_sample_loop", "sample-loop", "many-small-operators", framework="paddle"),
)
BY_NAME = {case.name: case for case in CASES}
