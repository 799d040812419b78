"""``python -m stepscope``."""

import os
import sys
from contextlib import suppress

# Python put the working directory first on the path of imports, as it does for every module that it runs. A folder of
# traces is one, and may hold a file `polars.py`. `run` puts the program's own directory here.
with suppress(OSError):  # a working directory that was removed holds nothing
    if not sys.flags.safe_path and os.path.samefile(sys.path[0] or os.curdir, os.curdir):  # noqa: PTH121
        sys.path[0] = os.path.dirname(sys.executable)  # noqa: PTH120 - pathlib is loaded with the commands

from stepscope.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
