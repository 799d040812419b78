"""What a phone shows, and a link to a page that the run does not have."""

from __future__ import annotations

from collections.abc import Callable

from tests.page.conftest import Watched

Open = Callable[..., Watched]


def test_names_have_room_in_the_table_of_a_flame_graph(links: dict[str, str], opened: Open) -> None:
    watched = opened(f"{links['cpu']}&p=flame", width=390, height=780)
    watched.settle("flame")
    widths = watched.page.evaluate(
        "[...document.querySelectorAll('.sums td.name')].map(one => one.getBoundingClientRect().width)"
    )
    assert widths
    assert min(widths) > 100
    assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_columns_out_of_sight_are_hinted_at_until_they_are_in_sight(links: dict[str, str], opened: Open) -> None:
    watched = opened(f"{links['cpu']}&p=operators", width=390, height=780)
    watched.settle("operators")
    page = watched.page
    page.wait_for_selector(".table .scroll.beyond")
    colours = "[...document.querySelectorAll('main h1, .table td:first-child')].map(one => getComputedStyle(one).color)"
    assert "rgb(138, 75, 0)" not in page.evaluate(colours)  # that of losses
    page.evaluate("document.querySelectorAll('.table .scroll').forEach(one => one.scrollTo(one.scrollWidth, 0))")
    page.wait_for_selector(".table .scroll.beyond", state="detached")


def test_a_choice_of_parts_is_as_wide_as_the_screen_at_most(links: dict[str, str], opened: Open) -> None:
    watched = opened(f"{links['ranks']}&p=ranks", width=390, height=780)
    watched.settle("ranks")
    ends = watched.page.evaluate(
        "[...document.querySelectorAll('main select')].map(one => one.getBoundingClientRect().right)"
    )
    assert ends
    assert max(ends) <= 390


def test_a_link_to_a_page_without_data_says_why(links: dict[str, str], opened: Open) -> None:
    watched = opened(f"{links['cpu']}&p=memory")
    watched.page.wait_for_selector("main h1:has-text('Memory')")
    watched.page.wait_for_selector("main :text('Not in this run: memory was not recorded')")
    assert watched.wrong == []
