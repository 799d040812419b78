"""Each test runs on every framework that is installed.

With PyTorch, no test leaves anything of the profiler behind, and none waits for the native recorder to be built.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.frameworks.contract.framework import NAMES, Framework, framework_of

if find_spec("torch"):
    from tests.frameworks.torch.conftest import nothing_left_behind, recorder_is_built

    __all__ = ["nothing_left_behind", "recorder_is_built"]


@pytest.fixture(params=NAMES)
def framework(request: pytest.FixtureRequest) -> Framework:
    return framework_of(request.param)
