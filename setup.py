"""The C part of the package; everything else is in pyproject.toml.

Plain C behind ctypes, without Python's API: one binary serves every Python. Optional: where no compiler is, the readers
in Python give the same tables, slower.
"""

from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("src/stepscope/native")

setup(
    ext_modules=[
        Extension(
            "stepscope.native._stepscope",
            sources=sorted(str(path) for path in NATIVE.glob("*.c")),
            depends=sorted(str(path) for path in NATIVE.glob("*.h")),
            extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra", "-fvisibility=hidden"],
            optional=True,
            py_limited_api=True,
        )
    ]
)
