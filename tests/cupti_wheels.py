"""NVIDIA's packages of CUPTI, which ``make environments`` downloads: their headers and libraries, not installed."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

#: Where `make environments` puts them: the oldest and the newest minor version of each major one.
WHEELS = Path(__file__).parents[1] / ".envs" / "cupti"


@dataclass(frozen=True)
class Cupti:
    """One version of CUPTI.

    Attributes:
        includes: Directories of its headers and of those of CUDA that they include.
        library: The library itself; it needs no GPU to be loaded.
    """

    includes: tuple[Path, ...]
    library: Path

    @property
    def flags(self) -> list[str]:
        """The compiler's options."""
        return [f"-I{directory}" for directory in self.includes]

    def structures(self) -> dict[str, str]:
        """Return the structure of each kind of record, as the header's comment on the kind names it."""
        text = self._headers("cupti_activity.h")[0].read_text(errors="replace")
        documented = r"/\*\*((?:(?!\*/).)*)\*/\s*CUPTI_ACTIVITY_KIND_(\w+)\s*="
        comments = {kind: comment for comment, kind in re.findall(documented, text, re.S)}
        named = {kind: re.findall(r"CUpti_Activity\w+", comment) for kind, comment in comments.items()}
        return {kind: names[0] for kind, names in named.items() if names}

    def families(self) -> dict[str, list[str]]:
        """Return all structures that the headers declare, old ones too, by their name without its number."""
        found: dict[str, list[str]] = {}
        for path in self._headers("cupti_activity*.h"):
            for name, family in re.findall(r"\}\s*((CUpti_Activity\w*?)\d*);", path.read_text(errors="replace")):
                found.setdefault(family, []).append(name)
        return found

    def _headers(self, pattern: str) -> list[Path]:
        return [path for directory in self.includes for path in directory.glob(pattern)]


def unpack(age: str, major: int, to: Path) -> Cupti:
    """Unpack the packages of one version.

    Args:
        age: ``oldest`` or ``newest``.
        major: Of CUDA.
        to: An empty directory.
    """
    ending = f"_cu{major}" if major < 13 else ""
    wheels = [
        *WHEELS.glob(f"{age}/nvidia_cuda_cupti{ending}-*.whl"),
        *WHEELS.glob(f"{age}/nvidia_cuda_runtime{ending}-*.whl"),
        *WHEELS.glob(f"{age}/nvidia_cuda_crt-*.whl"),
    ]
    if len(wheels) < 3:
        pytest.skip("`make environments` has not downloaded NVIDIA's packages")
    for number, wheel in enumerate(wheels):
        with zipfile.ZipFile(wheel) as archive:
            wanted = [name for name in archive.namelist() if "/include/" in name or "/libcupti.so." in name]
            archive.extractall(to / str(number), wanted)
    includes = {path.parent for name in ("cupti.h", "cuda.h") for path in to.rglob(name)}
    includes |= {path.parents[1] for path in to.rglob("crt/host_defines.h")}
    return Cupti(tuple(sorted(includes)), next(to.rglob("libcupti.so.*")))
