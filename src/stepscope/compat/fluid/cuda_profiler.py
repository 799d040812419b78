"""``cuda_profiler`` of ``paddle.fluid.profiler``: writes a log of the GPU's work in a ``with`` block.

The original used CUDA's command line profiler, which CUDA 12 does not have; this one records with CUPTI and writes the
same log, for any framework. An exception in the block propagates; the log then holds the work up to the exception.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.collect.cuda import cupti_library
from stepscope.collect.cuda.cupti_driver import Driver
from stepscope.collect.cuda.cupti_recorder import KINDS, CuptiRecorder
from stepscope.compat.fluid import cuda_log
from stepscope.errors import ArgumentError, OutputError, UsageError
from stepscope.trace.cupti_layout import Kind
from stepscope.trace.losses import LossLedger

_MODES = ("kvp", "csv")
_REMEDY = (
    "cuda_profiler needs an NVIDIA GPU with its driver, and CUPTI of CUDA 11 to 13 (pip install nvidia-cuda-cupti)."
)

_LOG = logging.getLogger("stepscope")


@contextmanager
def cuda_profiler(
    output_file: str | os.PathLike[str], output_mode: str | None = None, config: Sequence[str] | None = None
) -> Iterator[None]:
    """Record kernels, copies and fills of the block, and write them as a log.

    Args:
        output_file: Path of the log; an existing file is replaced.
        output_mode: ``kvp`` (key-value pairs) or ``csv``; None means what ``profilelogformat`` in ``config`` says, else
            ``csv``.
        config: Options of NVIDIA's Compute Command Line Profiler, one per item; None means those of the document:
            :data:`~stepscope.compat.fluid.cuda_log.DEFAULT`. Hardware counters are not read; the log warns of each.

    Raises:
        ValueError: ``output_mode`` is neither.
        UsageError: No GPU or no CUPTI was found, or another profiler uses CUPTI. No file has been created.
        OutputError: The log cannot be written.
    """
    if output_mode is not None and output_mode not in _MODES:
        message = "The output mode must be 'kvp' or 'csv'."
        raise ArgumentError(message)
    wanted = cuda_log.parse(cuda_log.DEFAULT if config is None else config)
    path = Path(output_file).absolute()
    recording = _Recording(wanted)
    check_log_path(path)
    mode = output_mode or wanted.format or "csv"
    with tempfile.TemporaryDirectory(prefix="stepscope-cuda-") as directory:
        recording.begin(Path(directory))
        try:
            yield
        except BaseException:
            try:
                _write(path, recording.end(mode))
            except Exception as error:  # noqa: BLE001 - law 1: the program's own exception is the one that counts
                _LOG.warning("stepscope: no log of CUDA was written: %s", error)
            raise
        _write(path, recording.end(mode))


class _Recording:
    """The recording of one block.

    Args:
        config: The options of the log.

    Raises:
        UsageError: CUDA cannot be recorded on this machine.
    """

    def __init__(self, config: cuda_log.Config) -> None:
        self._config = config
        self._recorder: CuptiRecorder | None = None
        try:
            self._handle = cupti_library.load_driver()
            self._devices: list[dict[str, Any]] = Driver(self._handle).devices()
            self._library = cupti_library.load() if self._devices else None
        except cupti_library.CuptiError as error:
            message = f"CUDA cannot be recorded here: {error}."
            raise UsageError(message, _REMEDY) from None
        if not self._devices:
            message = "CUDA cannot be recorded here: NVIDIA's driver finds no GPU."
            raise UsageError(message, _REMEDY)
        if cupti_library.torch_is_recording():
            message = "CUDA cannot be recorded now: torch's profiler is recording, and CUPTI serves one profiler only."
            raise UsageError(message, "Use one of the two at a time.")

    def begin(self, directory: Path) -> None:
        if self._library is None:
            return
        # Without `conckerneltrace` the original serialized kernels.
        kernels = {Kind.CONCURRENT_KERNEL: Kind.CONCURRENT_KERNEL if self._config.concurrent else Kind.KERNEL}
        try:
            recorder = CuptiRecorder(
                directory / "cupti.ssc", self._library, [kernels.get(kind, kind) for kind in KINDS]
            )
            recorder.start()
        except RuntimeError as error:
            message = f"CUDA cannot be recorded now: {error}."
            raise UsageError(
                message, "Stop the other recording first, or install stepscope with a C compiler."
            ) from None
        self._recorder = recorder
        self._handle.cuProfilerStart()

    def end(self, mode: str) -> str:
        """Return the log."""
        from stepscope.read.cupti.cupti_reader import open_capture

        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return ""
        self._handle.cuProfilerStop()
        recorder.stop()
        ledger = LossLedger("cuda_profiler")
        work = open_capture(recorder.path, ledger).named_work(ledger)
        names = {row["device"]: row["name"] for row in self._devices}
        lost = [f"{loss.what}: {loss.count}. {loss.advice}" for loss in ledger.rows() if loss.severity != "info"]
        return cuda_log.log(with_methods(work), self._config, mode, names, lost)


def with_methods(work: Any) -> Any:  # noqa: ANN401 - Polars is imported only when a log is written
    """Return work of a GPU with the column ``method``: its name in the log."""
    import polars as pl

    columns = ("name", "symbol", "copy", "flags")
    distinct = work.select(columns).unique()
    rows = [cuda_log.method(*row) for row in distinct.with_columns(pl.col("name", "symbol").cast(pl.String)).rows()]
    named = distinct.with_columns(method=pl.Series(rows, dtype=pl.String))
    return work.join(named, on=columns, how="left", nulls_equal=True, maintain_order="left")


def check_log_path(path: Path) -> None:
    """Check that a file can be written at ``path``, without creating it.

    Raises:
        OutputError: It is a directory, or its directory is missing or not writable.
    """
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        message = f"{path} cannot be written."
        raise OutputError(message, "Name a file in a directory that exists and is writable.")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}."
        raise OutputError(message, "Name a file in a directory that exists and is writable.") from None
