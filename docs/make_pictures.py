"""Makes the pictures in README.md from a real training: its summary in the terminal, and two pages of its report.

python docs/make_pictures.py [CAPTURE]

It writes docs/summary.svg, docs/overview.png and docs/timeline.png; the last two need a Chromium (`make browser`).

CAPTURE is a trace that `stepscope import` reads. Without it, the ResNet-50 training on a V100 that the Kineto project
published (../shared/data/kineto; torch-tb-profiler's example of a DataLoader without workers).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from stepscope.advise.rank_findings import rank_findings
from stepscope.report.page.content import Shown
from stepscope.report.page.one_file import html
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
    """Import the capture into a throw-away run, show it, and write the pictures."""
    capture = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent.parent / DEFAULT
    if not capture.is_file():
        sys.stderr.write(f"{capture} is not there. Name a capture: python docs/make_pictures.py trace.json.gz\n")
        return 2
    capture = capture.resolve()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # paths in the pictures are short
        named = Path("resnet50.json.gz" if len(sys.argv) == 1 else capture.name)
        shutil.copyfile(capture, named)
        output = Path("stepscope-runs")
        command = [sys.executable, "-m", "stepscope", "import", str(named), "--output", str(output), "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own command
        [run] = output.iterdir()
        [rank] = Run(run).ranks
        console = Console(width=WIDTH, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor")
        render(rank.summary, rank_findings(rank), rank.manifest, console)
        page = Path("report.html").resolve()
        page.write_bytes(html(Shown.of(Run(run))))
        take_pages(page.as_uri())
        picture = console.export_svg(title=f"stepscope import {named.name}", theme=THEME)
    # Rich's picture asks a server for its font; ours opens anywhere with the font that is there.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL).replace("Fira Code", FONT)
    (HERE / "summary.svg").write_text(picture, encoding="utf-8")
    return 0


def take_pages(address: str) -> None:
    """Write a picture of each of two pages of a report."""
    names = ("chromium-headless-shell", "chromium", "google-chrome")
    path = os.environ.get("STEPSCOPE_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 760}, color_scheme="light")
        for name, ready in (("overview", ".verdict"), ("timeline", ".holder[data-drawn]")):
            page.goto(f"{address}#p={name}")
            page.wait_for_selector(ready, state="attached")
            page.wait_for_selector("main:not(:has(.pending))")
            page.screenshot(path=HERE / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
