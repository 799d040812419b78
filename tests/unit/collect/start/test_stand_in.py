"""``--as NAME``: our names in the place of a package's, whatever the order of imports, and back again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.collect.start.stand_in import Package, StandIn

PACKAGE = Package(
    trigger="otherpackage",
    home="ourpackage",
    names={
        "otherpackage": {"Profiler": "Profiler", "Added": "Profiler"},
        "otherpackage.profiler": {"Profiler": "Profiler"},
        "otherpackage.profiler.deep": {"analyse": "analyse"},
        "otherpackage.of_another_version": {"analyse": "analyse"},
    },
)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The two packages; the other one uses its own names itself, while it is imported."""
    other = tmp_path / "otherpackage"
    (other / "profiler").mkdir(parents=True)
    (other / "__init__.py").write_text(
        "from otherpackage import profiler\nfrom otherpackage.profiler import Profiler\n"
    )
    (other / "profiler" / "__init__.py").write_text("class Profiler: pass\n")
    (other / "profiler" / "deep.py").write_text("def analyse(): return 'theirs'\n")
    (tmp_path / "ourpackage.py").write_text("class Profiler: pass\ndef analyse(): return 'ours'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("otherpackage", "ourpackage")]:
        del sys.modules[name]


IMPORTS = (
    "import otherpackage; P = otherpackage.Profiler",
    "from otherpackage import Profiler as P",
    "from otherpackage.profiler import Profiler as P",
    "import otherpackage.profiler as op; P = op.Profiler",
    "import otherpackage as o; P = o.profiler.Profiler",
    "from otherpackage.profiler.deep import analyse; from otherpackage import Added as P",
)


@pytest.mark.parametrize("code", IMPORTS)
@pytest.mark.parametrize("before", [False, True], ids=["installed first", "imported first"])
def test_every_way_to_the_name(packages: Path, code: str, before: bool) -> None:
    if before:
        __import__("otherpackage")
    errors: list[Exception] = []
    place = StandIn("other", PACKAGE, errors.append)
    place.install()
    names: dict[str, type] = {}
    exec(code, names)
    assert names["P"].__module__ == "ourpackage"
    assert sys.modules["otherpackage.profiler.deep"].analyse() == "ours"
    # and everything is as before afterwards
    place.remove()
    import otherpackage  # type: ignore[import-not-found]

    assert otherpackage.Profiler.__module__ == "otherpackage.profiler"
    assert otherpackage.profiler.Profiler is otherpackage.Profiler
    assert not hasattr(otherpackage, "Added")
    assert sys.modules["otherpackage.profiler.deep"].analyse() == "theirs"
    assert errors == []


def test_where_ours_is_not_whole_the_script_keeps_its_own(packages: Path) -> None:
    (packages / "ourpackage.py").write_text("class Profiler: pass\n")
    errors: list[Exception] = []
    StandIn("other", PACKAGE, errors.append).install()
    import otherpackage

    assert otherpackage.Profiler.__module__ == "otherpackage.profiler"
    assert len(errors) == 1
    assert "analyse" in str(errors[0])


def test_a_script_that_never_imports_it(packages: Path) -> None:
    finders = list(sys.meta_path)
    place = StandIn("other", PACKAGE, lambda error: None)
    place.install()
    place.remove()
    assert sys.meta_path == finders
