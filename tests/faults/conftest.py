"""No test leaves anything of the profiler behind."""

from tests.frameworks.torch.conftest import nothing_left_behind

__all__ = ["nothing_left_behind"]
