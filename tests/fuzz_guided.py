"""Lets atheris damage a capture, guided by the branches that it reaches in the readers' Python code.

::

    pip install atheris
    python -m tests.fuzz_guided READER [option of libFuzzer ...]

It ends at the first fault, and keeps the capture in ``build/fuzz``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-not-found, unused-ignore]

# Only modules that are imported here are instrumented.
with atheris.instrument_imports(include=["stepscope.read", "stepscope.analyse"]):
    from tests.conftest import files_in
    from tests.fuzz import fault_of, keep
    from tests.samples import SAMPLES


def main() -> None:
    """Fuzz one reader until it fails, or libFuzzer's options end it."""
    name, *options = sys.argv[1:]
    directory = Path(tempfile.mkdtemp())
    corpus = directory / "corpus"
    corpus.mkdir()
    sample = SAMPLES[name](directory)
    sound = {file: file.read_bytes() for file in files_in(sample)}
    for number, content in enumerate(sound.values()):
        (corpus / str(number)).write_bytes(bytes([number]) + content)

    def try_one(data: bytes) -> None:
        """The first byte says which file of the capture the others replace."""
        file = list(sound)[data[0] % len(sound)] if data else next(iter(sound))
        file.write_bytes(data[1:])
        fault = fault_of(sample, results=True)
        if fault:
            keep(sample, f"{name}-guided")
            raise RuntimeError(fault)
        file.write_bytes(sound[file])

    longest = 2 * max(map(len, sound.values()))
    atheris.Setup([sys.argv[0], str(corpus), "-len_control=0", f"-max_len={longest}", *options], try_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
