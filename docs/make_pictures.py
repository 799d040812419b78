"""Makes docs/summary.svg, the picture in README.md: the summary of a real training, as the terminal shows it.

python docs/make_pictures.py [CAPTURE]

CAPTURE is a trace that `stepscope import` reads. Without it, the ResNet-50 training on a V100 that the Kineto project
published (../shared/data/kineto; torch-tb-profiler's example of a DataLoader without workers).
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from stepscope.report.terminal.printed_summary import render
from stepscope.run import Run

HERE = Path(__file__).resolve().parent
DEFAULT = "shared/data/kineto/kineto/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz"
WIDTH = 96
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono"
#: Calm on GitHub's light and dark pages: background, text, and the eight colours and their bright forms.
THEME = TerminalTheme(
    (22, 27, 34),
    (214, 220, 228),
    [
        (72, 79, 88),
        (217, 111, 95),
        (47, 163, 124),
        (224, 160, 48),
        (74, 163, 211),
        (143, 126, 231),
        (74, 163, 211),
        (200, 205, 212),
    ],
)


def main() -> int:
    """Import the capture into a throw-away run, show its summary, and write the picture."""
    capture = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent.parent / DEFAULT
    if not capture.is_file():
        sys.stderr.write(f"{capture} is not there. Name a capture: python docs/make_pictures.py trace.json.gz\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        named = Path(folder, "resnet50.json.gz" if len(sys.argv) == 1 else capture.name)
        shutil.copyfile(capture, named)
        output = Path(folder, "runs")
        command = [sys.executable, "-m", "stepscope", "import", str(named), "--output", str(output), "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own command
        [run] = output.iterdir()
        [rank] = Run(run).ranks
        console = Console(width=WIDTH, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor")
        render(rank.summary, rank.manifest, console)
        picture = console.export_svg(title=f"stepscope import {named.name}", theme=THEME)
    # Rich's picture asks a server for its font; ours opens anywhere with the font that is there.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL).replace("Fira Code", FONT)
    (HERE / "summary.svg").write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
