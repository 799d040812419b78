"""The C part of the package and its start-up hook; everything else is in pyproject.toml.

Plain C behind ctypes, without Python's API: one binary serves every Python. Optional: where no compiler is, the readers
in Python give the same tables, slower.
"""

from pathlib import Path

from setuptools import Command, Extension, setup
from setuptools.command.build import build

NATIVE = Path("src/stepscope/native")
HOOK = "stepscope.pth"


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
        """Take the place of what is built from ``build``."""
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


class Build(build):
    """``build``, and the start-up hook."""

    sub_commands = [*build.sub_commands, ("build_startup_hook", None)]  # noqa: RUF012 - setuptools wants it so


setup(
    cmdclass={"build": Build, "build_startup_hook": BuildStartupHook},
    ext_modules=[
        Extension(
            "stepscope.native._stepscope",
            sources=sorted(str(path) for path in NATIVE.glob("*.c")),
            depends=sorted(str(path) for path in NATIVE.glob("*.h")),
            extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra", "-fvisibility=hidden"],
            optional=True,
            py_limited_api=True,
        )
    ],
)
