"""Extensions: the examples of docs/extending.md, installed work as a package; a broken one costs itself only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import stepscope
from stepscope.extensions import GROUPS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
CAPTURE = Path(__file__).parents[1] / "data" / "kineto" / "alexnet_simple_add.json.gz"


def install(site: Path, entry_points: dict[str, dict[str, str]]) -> None:
    """Write what an installer writes for a package with these entry points."""
    info = site / "my_extension-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-extension\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {to}\n" for key, to in each.items()) for group, each in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


Call = Callable[..., subprocess.CompletedProcess[str]]


def caller(site: Path, folder: Path) -> Call:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        found = os.pathsep.join([str(site), str(Path(stepscope.__file__).parents[1])])
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": found},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return call


@pytest.fixture
def call(tmp_path: Path) -> Call:
    """Run Python where the package of the page is installed."""
    text = PAGE.read_text(encoding="utf-8")
    site = tmp_path / "site"
    toml = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert toml is not None
    entry_points = tomllib.loads(toml[1])["project"]["entry-points"]
    assert set(entry_points) == set(GROUPS)
    install(site, entry_points)
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        name = re.match(r"# (my_extension/\w+\.py)\n", code)
        assert name is not None
        (site / name[1]).parent.mkdir(exist_ok=True)
        (site / name[1]).write_text(code)
    return caller(site, tmp_path)


def test_a_collector_of_a_package_records(call: Call) -> None:
    done = call(
        "-c",
        "import stepscope\n"
        "with stepscope.profile(output='runs', analyse='later') as profile:\n    profile.step()\n"
        "[recorded] = profile.recorded\nrun = stepscope.open(recorded.path)\n"
        "print(run.manifest['collectors']['room'], 'room temperature' in run.tables['counters'].collect()['name'])",
    )
    assert (done.stdout, done.returncode) == ("{'sensor': 'ceiling'} True\n", 0), done.stderr


def test_a_reader_of_a_package_reads_files_and_directories(call: Call, tmp_path: Path) -> None:
    (tmp_path / "captures").mkdir()
    (tmp_path / "captures" / "first.spans.txt").write_text("#spans\nmatmul 1000 500\nadd 1500 200\n")
    for source in ("captures", "captures/first.spans.txt"):
        done = call(
            "-c", f"import stepscope; print(stepscope.open({source!r}).tables['spans'].collect()['name'].to_list())"
        )
        assert (done.stdout, done.returncode) == ("['matmul', 'add']\n", 0), done.stderr


def test_results_formats_and_rules_of_a_package_are_used(call: Call, tmp_path: Path) -> None:
    done = call("-m", "stepscope", "import", str(CAPTURE), "--output", "runs")
    assert done.returncode == 0, done.stderr
    assert "operators run in the recorded steps" in done.stdout
    [run] = (tmp_path / "runs").iterdir()
    assert (run / "rank0" / "results" / "longest.csv").read_text().startswith("name,dur_us\n")
    done = call("-m", "stepscope", "export", str(run), "--to", "names")
    assert done.returncode == 0, done.stderr
    assert "aten::_convolution" in Path(tmp_path, done.stdout.strip()).read_text().splitlines()


def test_a_communication_library_of_a_package_is_known(call: Call) -> None:
    done = call(
        "-c",
        "from stepscope.read.common.communication import communicates, transport_of_kernel as of\n"
        "print(of('void myring::gpu_exchange<4>(int)'), of('myring::pack'), communicates('myring::send_all'))",
    )
    assert (done.stdout, done.returncode) == ("ring None True\n", 0), done.stderr


def test_a_broken_extension_costs_itself_only(tmp_path: Path) -> None:
    # Given: what cannot be imported, what lacks a member, what cannot be made, and one with a name of ours
    broken = {
        "stepscope.collectors": {"gone": "nowhere:Gone", "host": "extra:Ours", "raises": "extra:Raises"},
        "stepscope.readers": {"half": "extra:Half"},
        "stepscope.results": {"wrong": "extra:Wrong"},
        "stepscope.rules": {"bad": "extra:bad_rule"},
    }
    site = tmp_path / "site"
    install(site, broken)
    members = "available = prepare = start = stop = describe = None"
    (site / "extra.py").write_text(
        f"class Ours:\n    {members}\n\n"
        f"class Raises:\n    {members}\n    def __init__(self):\n        raise OSError('no')\n\n"
        "class Half:\n    suffixes = ()\n\nclass Wrong:\n    pass\n\ndef bad_rule(summary):\n    return 1 / 0\n"
    )
    call = caller(site, tmp_path)
    done = call(
        "-c",
        "import stepscope\n"
        "with stepscope.profile(output='runs', analyse='later') as profile:\n    profile.step()\n"
        "[recorded] = profile.recorded\nprint(sorted(stepscope.open(recorded.path).manifest['collectors']))",
    )
    assert done.returncode == 0, done.stderr
    assert "host" in done.stdout
    assert "raises" not in done.stdout
    for said in ("gone", "host", "raises"):
        assert done.stderr.count(f"extension {said} of stepscope.collectors is left out") == 1
    done = call("-m", "stepscope", "import", str(CAPTURE), "--output", "imported")
    assert done.returncode == 0, done.stderr
    for name in ("half of stepscope.readers", "wrong of stepscope.results", "bad of stepscope.rules"):
        assert done.stderr.count(f"extension {name} is left out") == 1, done.stderr
