"""What the page of a run costs: first picture, frames, pan, search, range, memory, and the one file.

python benchmarks/view.py [--spans 10000000] [--lanes 256]
python benchmarks/view.py --capture TRACE.json.gz [--trace-processor trace_processor_shell]

It writes a capture of so many spans on so many lanes, half of them threads with operators, half of them streams with
kernels, in steps; or takes one that another tool wrote. `stepscope import` makes a run of it. Then `stepscope view`
serves it to a Chromium without a GPU (`$STEPSCOPE_CHROMIUM`, or one that is installed), twice: the first time the
level of detail is made, the second time it is there. Wall time is what somebody at the screen waits for; CPU time is
that of the server, or of the command, with all its threads. Perfetto's trace processor is asked about the same spans
where its path is given.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import psutil
from playwright.sync_api import Page, sync_playwright

from stepscope.report.page.one_file import bundle

#: Steps of the capture that is written, and its distinct names.
_STEPS, _NAMES = 200, 2000
_CHUNK = 100_000
#: A name of the capture that is written, and of any of torch.
_SEARCHED = "/operator_1|aten::/"
_BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
#: Presses a key and waits for the picture of its window: time until then, and the worker's time for a frame, ms.
_PRESS = """key => new Promise((done, failed) => {
    const holder = document.querySelector('.holder'), begin = performance.now();
    const seen = () => { watch.disconnect(); done([performance.now() - begin, +holder.dataset.ms]); };
    const watch = new MutationObserver(seen);
    watch.observe(holder, {attributes: true});
    setTimeout(() => failed(new Error('no picture after ' + key)), 30000);
    document.body.dispatchEvent(new KeyboardEvent('keydown', {code: key, bubbles: true}));
})"""
#: Zoom in from the whole run, pan there and back, zoom out.
_KEYS = ["KeyW"] * 12 + ["KeyD"] * 15 + ["KeyA"] * 15 + ["KeyS"] * 8


def write_capture(path: Path, spans: int, lanes: int) -> None:
    """Write a Kineto trace: the spans of a lane follow each other, with a pause at the end of each step."""
    rng = np.random.default_rng(0)
    each = spans // lanes
    names = [f"operator_{number}<float, {number % 7}>" for number in range(_NAMES)]
    ends = []
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [\n')
        for lane in range(lanes):
            dur = np.round(rng.lognormal(8.6, 1.7, each) + 80)
            gap = np.round(rng.pareto(1.3, each) * 300)
            gap[:: max(1, each // _STEPS)] += 2_000_000
            start = (np.cumsum(dur + gap) - dur) / 1e3
            ends.append(float(start[-1] + dur[-1] / 1e3))
            if lane % 2:
                place = f'"cat":"kernel","pid":0,"tid":{7 + lane},"args":{{"device":0,"stream":{7 + lane}}}'
            else:
                place = f'"cat":"cpu_op","pid":100,"tid":{100 + lane}'
            chosen = np.minimum(rng.zipf(1.4, each), _NAMES) - 1
            for first in range(0, each, _CHUNK):
                rows = zip(*(column[first : first + _CHUNK].tolist() for column in (start, dur, chosen)), strict=True)
                lines = (
                    f'{{"ph":"X","ts":{ts:.3f},"dur":{ns / 1e3:.3f},"name":"{names[name]}",{place}}},\n'
                    for ts, ns, name in rows
                )
                file.writelines(lines)
        step = max(ends) / _STEPS
        for number in range(_STEPS):
            event = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 100, "tid": 100}
            file.write(
                json.dumps({**event, "ts": number * step, "dur": step}) + (",\n" if number + 1 < _STEPS else "\n")
            )
        file.write("]}\n")


def cpu(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of those that it waited for."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def told(what: str, wall: float, used: float | None = None, more: str = "") -> None:
    """Print a row."""
    processor = "" if used is None else f"{used:9.3f} s CPU"
    print(f"{what:44} {wall:9.3f} s {processor} {more}", flush=True)


def command(*arguments: str | Path) -> tuple[float, float, str]:
    """Run stepscope; return wall and CPU seconds, and what it printed."""
    begin, before = time.perf_counter(), os.times()
    done = subprocess.run(
        [sys.executable, "-m", "stepscope", *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=True
    )
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - begin, used, done.stdout


@contextmanager
def serving(run: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Serve a run; yield the link, and the process."""
    arguments = [sys.executable, "-m", "stepscope", "view", str(run), "--no-browser", "--port", "0"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def until(page: Page, condition: str) -> None:
    """Wait for a condition of the page, which is asked from outside."""
    while not page.evaluate(condition):
        page.wait_for_timeout(5)


def first_picture(page: Page, link: str, server: psutil.Process, what: str) -> None:
    """Open the timeline, and wait for its picture."""
    begin, before = time.perf_counter(), cpu(server)
    page.goto(f"{link}&p=timeline")
    page.wait_for_selector(".holder[data-drawn]", state="attached")
    told(what, time.perf_counter() - begin, cpu(server) - before)


def interact(page: Page, server: psutil.Process) -> None:
    """Zoom, pan, search and ask for the sums of everything."""
    page.focus(".area")
    page.evaluate(_PRESS, "Digit0")
    before = cpu(server)
    found = [page.evaluate(_PRESS, key) for key in _KEYS]
    each = (cpu(server) - before) / len(_KEYS)
    for what, times in zip(("key to whole picture", "frame in the worker"), zip(*found, strict=True), strict=True):
        ordered = sorted(times)
        tail = f"p95 {ordered[int(0.95 * len(ordered))]:.1f} ms, most {ordered[-1]:.1f} ms"
        told(f"{what}, median of {len(times)}", statistics.median(times) / 1e3, each if what[0] == "k" else None, tail)
    begin, before = time.perf_counter(), cpu(server)
    page.fill("#search", _SEARCHED)
    until(page, "/[0-9] spans of/.test(document.querySelector('.tools').textContent)")
    told("search in the whole run", time.perf_counter() - begin, cpu(server) - before)
    heap = page.evaluate("performance.memory.usedJSHeapSize / 1e6")
    print(f"{'heap of the page':44} {heap:9.1f} MB")


def ask(link: str, path: str, body: object = None) -> bytes:
    """Return what the server answers the page."""
    address, token = link.split("#token=")
    headers = {"X-Stepscope-Token": token, "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(f"{address}api/{path}", data, headers)) as answer:
        return bytes(answer.read())


def answers(link: str, server: psutil.Process) -> None:
    """Measure what the server does for a picture and for the sums of a range, on forty lanes."""
    content = json.loads(ask(link, "content"))
    timeline = content["timeline"]
    rank, total = content["rank"], timeline["total"]
    lanes = list(range(min(40, len(json.loads(ask(link, "lanes", {"rank": rank}))["lanes"]))))

    def of(part: float) -> list[dict[str, object]]:
        return [{"rank": rank, "lanes": lanes, "a": int(total * (0.5 - part / 2)), "b": int(total * (0.5 + part / 2))}]

    asked = {
        f"a picture of 1/{round(1 / part):,} of the run": ("frame", {"parts": of(part), "px": 2400})
        for part in (1, 0.1, 0.01, 0.0001)
    }
    asked |= {f"sums of 1/{round(1 / part)} of the run": ("range", {"parts": of(part)}) for part in (0.1, 1)}
    for what, (path, body) in asked.items():
        ask(link, path, body)
        begin, before = time.perf_counter(), cpu(server)
        size = sum(len(ask(link, path, body)) for _ in range(5)) // 5
        used = (cpu(server) - before) / 5
        told(f"{what}, {len(lanes)} lanes", (time.perf_counter() - begin) / 5, used, f"{size / 1e3:.0f} kB")


def measure(run: Path, folder: Path, processor: Path | None) -> None:
    """Print all rows of a run."""
    browser_path = os.environ.get("STEPSCOPE_CHROMIUM") or next(filter(None, map(shutil.which, _BROWSERS)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path, args=["--no-sandbox", "--enable-precise-memory-info"]
        )
        for what in ("first picture, from the tables", "first picture, level of detail made"):
            with serving(run) as (link, server):
                page = browser.new_page(viewport={"width": 1600, "height": 900})
                page.set_default_timeout(600_000)
                first_picture(page, link, server, what)
                if what.endswith("made"):
                    interact(page, server)
                    answers(link, server)
                print(f"{'memory of the server, at most':44} {memory(server):9.1f} MB")
                wait_for_levels(run)
                page.close()
        browser.close()
    for name in ("page.js", "worker.js", "page.css"):
        text = bundle(name).encode()
        print(f"{name:44} {len(text) / 1e3:9.1f} kB, {len(gzip.compress(text)) / 1e3:.1f} compressed")
    file = folder / "report.html"
    wall, used, _ = command("report", run, "--html", file, "--quiet")
    told("report --html", wall, used, f"{file.stat().st_size / 1e6:.2f} MB")
    if processor is not None:
        command("export", run, "--to", "pftrace", "--output", folder)
        [trace] = folder.rglob("*.pftrace")
        begin, before = time.perf_counter(), os.times()
        subprocess.run([processor, "-Q", "select count(*), sum(dur) from slice", trace], check=True)
        told(
            "Perfetto's trace processor: load and count",
            time.perf_counter() - begin,
            os.times().children_user - before.children_user,
        )


def wait_for_levels(run: Path) -> None:
    """Wait until the level of detail is beside the tables: of many spans it is made after the first picture."""
    begin = time.perf_counter()
    while not (made := list(run.glob("rank*/timeline/head.json"))):
        time.sleep(0.05)
    told("level of detail beside the tables after", time.perf_counter() - begin, more=f"{sizes(made[0].parent)} MB")


def sizes(folder: Path) -> int:
    """Return the size of the files in a folder, MB."""
    return round(sum(path.stat().st_size for path in folder.iterdir()) / 1e6)


def memory(process: psutil.Process) -> float:
    """Return the most memory that a process had, without files that it maps, MB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return (int(found["VmHWM"].split()[0]) - int(found["RssFile"].split()[0])) / 1e3


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=10_000_000)
    parser.add_argument("--lanes", type=int, default=256)
    parser.add_argument("--capture", type=Path)
    parser.add_argument("--trace-processor", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        capture = arguments.capture or folder / "spans.json"
        if arguments.capture is None:
            write_capture(capture, arguments.spans, arguments.lanes)
        wall, used, printed = command("import", capture, "--output", folder / "runs", "--quiet")
        told("import", wall, used, f"{capture.stat().st_size / 1e6:.0f} MB")
        measure(Path(printed.splitlines()[-1]), folder, arguments.trace_processor)


if __name__ == "__main__":
    main()
