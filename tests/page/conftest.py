"""A real browser, and the runs that its pages show."""

from __future__ import annotations

import gzip
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

import stepscope
from stepscope.report.page.content import Shown
from stepscope.report.page.one_file import comparison_html, html
from stepscope.run import Run
from stepscope.view.server import Server

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
AXE = ROOT / "page" / "node_modules" / "axe-core" / "axe.min.js"

#: Captures by the name of what they show.
CAPTURES = {
    "gpu": SHARED / "kineto/tracelens/h100/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    "cpu": ROOT / "tests/data/kineto/alexnet_simple_add.json.gz",
    "ascend": SHARED / "ascend/text_level2",
    "jax": SHARED / "xplane",
    "ranks": ROOT / "tests/data/mindspore_cpu/two_ranks",
    "host": SHARED / "kineto/hta/cpu_only_old",
}
#: Where the pictures of every page are kept.
PICTURES = ROOT / "build" / "pages"


def browser_path() -> str | None:
    """Return the Chromium of this machine."""
    names = ("chromium-headless-shell", "chromium", "google-chrome")
    return os.environ.get("STEPSCOPE_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = browser_path()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("CI has no browser; `make browser` installs one")
        pytest.skip("no browser: apt-get install chromium-headless-shell, or set STEPSCOPE_CHROMIUM")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The runs by name; those whose captures are not here are missing."""
    found = {name: stepscope.open(path) for name, path in CAPTURES.items() if path.exists()}
    folder = tmp_path_factory.mktemp("bare")
    empty, cut = folder / "empty.json", folder / "cut.json.gz"
    empty.write_text('{"traceEvents": []}')
    whole = CAPTURES["cpu"].read_bytes()
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    return found | {"empty": stepscope.open(empty), "damaged": stepscope.open(cut)}


def run_named(runs: dict[str, Run], name: str) -> Run:
    if name not in runs:
        pytest.skip(f"{CAPTURES.get(name, name)} is not here")
    return runs[name]


@dataclass
class Files:
    """The runs as files, each made when it is first asked for."""

    runs: dict[str, Run]
    folder: Path

    def __getitem__(self, name: str) -> Path:
        path = self.folder / f"{name}.html"
        if not path.exists():
            shown = comparison_of(self.folder) if name == "comparison" else html(Shown.of(run_named(self.runs, name)))
            path.write_bytes(shown)
        return path


def comparison_of(folder: Path) -> bytes:
    """Return the page of two captures, of which one has another operator and another shape."""
    whole = gzip.decompress(CAPTURES["cpu"].read_bytes())
    assert b"aten::relu_" in whole
    changed = folder / "changed.json"
    changed.write_bytes(whole.replace(b"aten::relu_", b"aten::gelu"))
    found = stepscope.compare(CAPTURES["cpu"], changed)
    return comparison_html(found, found.judge("memory:2%,slower:5%"))


@pytest.fixture(scope="session")
def files(runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Each run as one file, and a comparison."""
    return Files(runs, tmp_path_factory.mktemp("pages"))


@contextmanager
def serving(run: Run | Sequence[Run], *, proxied: bool = False) -> Iterator[Server]:
    """Answer for a run, or for several, in a thread of this process."""
    import uvicorn

    server = Server(run, port=0, proxied=proxied)
    settings = uvicorn.Config(server.app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    running = uvicorn.Server(settings)
    thread = threading.Thread(target=running.run, args=([server.socket],))
    thread.start()
    try:
        yield server
    finally:
        running.should_exit = True
        thread.join()
        server.close()


@pytest.fixture(scope="session")
def links(runs: dict[str, Run]) -> Iterator[dict[str, str]]:
    """The link to a server of each run."""
    with contextmanager(_all_serving)(runs) as found:
        yield found


def _all_serving(runs: dict[str, Run]) -> Iterator[dict[str, str]]:
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield {name: stack.enter_context(serving(run)).link for name, run in runs.items()}


#: Gathers what moves by itself: not by a click, a key, or another size of the window.
_SHIFTS = """self.shifts = [];
new PerformanceObserver(list => list.getEntries().filter(one => !one.hadRecentInput).forEach(one =>
    self.shifts.push([one.value, ...one.sources.map(source => source.node?.outerHTML?.slice(0, 100))])))
    .observe({type: 'layout-shift', buffered: true})"""


@dataclass
class Watched:
    """A page, and what went wrong in it: errors in the console, requests to elsewhere."""

    page: Page
    wrong: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The pages in the list, once it is known which have rows."""
        self.page.wait_for_selector("nav:not(:has(.maybe))")
        return [str(link.get_attribute("href"))[len("#p=") :] for link in self.page.query_selector_all("nav a")]

    def show(self, name: str) -> None:
        """Open one of the pages by its link in the list."""
        self.page.click(f'nav a[href="#p={name}"]')
        self.settle(name)

    def load(self, name: str) -> None:
        """Load one of the pages by its address, as who is sent the link."""
        self.page.evaluate(f"location.hash = 'p={name}'")
        self.page.reload()
        self.settle(name)

    def settle(self, name: str) -> None:
        """Wait until all of a page is there."""
        self.page.wait_for_selector(f'nav a[href="#p={name}"][aria-current="page"]')
        self.page.wait_for_selector("main h1", state="attached")
        if name == "timeline":
            self.page.wait_for_selector(".holder[data-drawn]", state="attached")
        self.page.wait_for_selector("main:not(:has(.pending))")


@pytest.fixture
def opened(browser: Browser) -> Iterator[object]:
    """Open an address in a fresh context, and say at the end what went wrong there."""
    contexts = []

    def open_address(
        address: str, *, dark: bool = False, width: int = 1280, height: int = 720, first: str = "nav"
    ) -> Watched:
        scheme = "dark" if dark else "light"
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        context.set_default_timeout(120_000)
        page = context.new_page()
        page.add_init_script(_SHIFTS)
        watched = Watched(page)

        def said(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                watched.wrong.append(message.text)

        page.on("console", said)
        page.on("pageerror", lambda error: watched.wrong.append(str(error)))
        inside = ("blob:", "data:", address.split("#")[0].rsplit("/", 1)[0])
        page.on("request", lambda asked: None if asked.url.startswith(inside) else watched.wrong.append(asked.url))
        page.goto(address)
        page.wait_for_selector(first)
        return watched

    yield open_address
    for context in contexts:
        context.close()
