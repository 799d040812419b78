"""The C part of the package and its start-up hook; everything else is in pyproject.toml.

The C is called through ctypes and uses nothing of Python's API. Without a C compiler it is left out, and the readers in
Python give the same tables, slower.
"""

import shutil
import subprocess
import sysconfig
from pathlib import Path

from setuptools import Command, Extension, setup
from setuptools.command.build import build

NATIVE = Path("src/stepscope/native")
HOOK = "stepscope.pth"
PAGE, BUNDLE = Path("page"), Path("src/stepscope/report/page/bundle")

# The tag of the wheel: one binary for every CPython from 3.11 on, on one platform. `py3-none-PLATFORM` would promise
# other implementations of Python as well, which neither Polars nor the tests cover; the tag of one version of Python,
# which setuptools gives to any extension, would promise too little. Free-threaded Pythons know no abi3, and setuptools
# rejects the option there: they build a wheel of their own.
ABI3 = {} if sysconfig.get_config_var("Py_GIL_DISABLED") else {"bdist_wheel": {"py_limited_api": "cp311"}}


class BuildStartupHook(Command):
    """Puts ``stepscope.pth`` beside the package, where Python runs it when it starts (docs/environment.md).

    A sub-command of ``build`` as setuptools describes them. In an editable install nothing of ``build_lib`` is
    installed, so the file goes to where the files of that wheel are gathered.
    """

    def initialize_options(self) -> None:
        """Set what setuptools sets before ``run``."""
        self.build_lib = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        """Take the directory that ``build`` builds into."""
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        """Copy the file."""
        target = self.get_finalized_command("install").install_lib if self.editable_mode else self.build_lib
        self.mkpath(target)
        self.copy_file(HOOK, target)

    def get_source_files(self) -> list[str]:
        """Return what a source distribution needs."""
        return [HOOK]

    def get_outputs(self) -> list[str]:
        """Return what ``run`` makes in ``build_lib``."""
        return [] if self.editable_mode else [str(Path(self.build_lib, HOOK))]

    def get_output_mapping(self) -> dict[str, str]:
        """Return which output is which source."""
        return dict.fromkeys(self.get_outputs(), HOOK)


class BuildPage(Command):
    """Builds the browser side (page/) into the package with Node; without Node, what is there already is taken.

    It comes before ``build_py``, which copies the files. An editable install takes what `make page` builds.
    """

    def initialize_options(self) -> None:
        """Have no options."""
        self.editable_mode = False

    def finalize_options(self) -> None:
        """Have no options."""

    def run(self) -> None:
        """Build, unless the sources or Node are missing."""
        if self.editable_mode or not PAGE.is_dir():
            return
        if shutil.which("npm") is None:
            self.warn("no Node: the browser side is not built")
            return
        subprocess.run(["npm", "ci", "--silent", "--ignore-scripts"], cwd=PAGE, check=True)  # noqa: S607 - found on the PATH
        subprocess.run(["node", "build.mjs"], cwd=PAGE, check=True)  # noqa: S607 - found on the PATH

    def get_source_files(self) -> list[str]:
        """Return what a source distribution needs."""
        names = ("*.json", "*.mjs", ".npmrc", "src/**/*.ts*", "src/*.css")
        return sorted(str(path) for name in names for path in PAGE.glob(name))

    def get_outputs(self) -> list[str]:
        """Return what ``build_py`` does not know: nothing."""
        return []

    def get_output_mapping(self) -> dict[str, str]:
        """Return which output is which source: none."""
        return {}


class Build(build):
    """``build``, the browser side before it, and the start-up hook after it."""

    sub_commands = [("build_page", None), *build.sub_commands, ("build_startup_hook", None)]  # noqa: RUF012 - theirs


setup(
    options=ABI3,
    cmdclass={"build": Build, "build_page": BuildPage, "build_startup_hook": BuildStartupHook},
    ext_modules=[
        Extension(
            "stepscope.native._stepscope",
            sources=sorted(str(path) for path in NATIVE.glob("*.c")),
            depends=sorted(str(path) for path in NATIVE.glob("*.h")),
            extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra", "-fvisibility=hidden"],
            optional=True,
            py_limited_api=bool(ABI3),
        ),
        # Kineto's recordings need this file where no recorder was built. The recorder compiles it, too.
        Extension(
            "stepscope.native._hush",
            sources=[str(NATIVE / "recorder/hush.cpp")],
            depends=[str(NATIVE / "recorder/hush.h")],
            language="c++",
            extra_compile_args=["-O2", "-std=c++17", "-Wall", "-Wextra", "-fvisibility=hidden"],
            optional=True,
            py_limited_api=bool(ABI3),
        ),
    ],
)
