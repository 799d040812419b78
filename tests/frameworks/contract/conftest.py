"""With PyTorch, no test leaves anything of the profiler behind, and none waits for the native recorder to be built."""

from importlib.util import find_spec

if find_spec("torch"):
    from tests.frameworks.torch.conftest import nothing_left_behind, recorder_is_built

    __all__ = ["nothing_left_behind", "recorder_is_built"]
