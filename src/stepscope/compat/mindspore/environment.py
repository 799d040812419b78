"""``EnvProfiler``: MindSpore's name for the profiler that the environment asks for."""

from __future__ import annotations

from typing import ClassVar

from stepscope.collect.start import environment


class EnvProfiler:
    """What ``MS_PROFILER_OPTIONS`` asks for in this process; see ``docs/environment.md``.

    The start-up hook begins the recording when MindSpore is imported, so a program need not use this class.

    Attributes:
        NOT_SUPPORTED_PARAMS: Arguments of ``profile`` that the environment cannot give.
        profiler: The recording; None if the environment asks for none.
    """

    NOT_SUPPORTED_PARAMS: ClassVar[list[str]] = ["schedule", "on_trace_ready"]
    profiler: ClassVar[environment.EnvironmentRecording | None] = None

    @classmethod
    def init_profiler(cls) -> None:
        """Begin what the environment asks for, unless the start-up hook has done so."""
        environment.begin()
        cls.profiler = environment.current()

    def analyse(self) -> None:
        """Stop, and compute the results; the end of the program does so, too."""
        asked = environment.current()
        if asked is not None:
            asked.finish()
