"""Patches of other libraries: what was installed is removed, exactly, and whatever else happens meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks


class Base:
    """A library's class."""

    def step(self, amount: int = 1) -> int:
        return amount

    @classmethod
    def init(cls) -> str:
        return cls.__name__


class Derived(Base):
    """It inherits everything."""


def doubled(original: Callable[..., int], *args: Any, **kwargs: Any) -> int:
    return 2 * original(*args, **kwargs)


def test_a_method_is_replaced_and_put_back() -> None:
    hooks, original = MethodHooks(), Base.step
    hooks.around(Base, "step", doubled)
    assert Base().step(amount=3) == 6
    assert Base.step.__name__ == "step"
    assert hooks.remove()
    assert Base.step is original
    assert hooks.remove()


def test_an_inherited_method_is_inherited_again() -> None:
    hooks = MethodHooks()
    hooks.around(Derived, "step", doubled)
    assert (Derived().step(), Base().step()) == (2, 1)
    hooks.remove()
    assert "step" not in vars(Derived)


def test_what_is_not_there_is_left_out() -> None:
    hooks = MethodHooks()
    hooks.around(None, "step", doubled)
    hooks.around(Base, "absent", doubled)
    hooks.put(Base, "made", 1)
    hooks.remove()
    assert not hasattr(Base, "absent")
    assert not hasattr(Base, "made")


def test_hooks_of_one_method_come_out_in_reverse() -> None:
    hooks, original = MethodHooks(), Base.step
    hooks.around(Base, "step", doubled)
    hooks.around(Base, "step", doubled)
    assert Base().step() == 4
    hooks.remove()
    assert Base.step is original


def test_a_later_patch_of_somebody_else_stays_and_calls_through() -> None:
    hooks, original = MethodHooks(), Base.step
    hooks.around(Base, "step", doubled)
    ours: Callable[..., int] = Base.step
    try:
        Base.step = lambda self, amount=1: 10 + ours(self, amount)  # type: ignore[assignment]
        assert not hooks.remove()
        assert Base().step() == 11
    finally:
        Base.step = original  # type: ignore[method-assign]


def test_a_class_method_stays_one() -> None:
    hooks = MethodHooks()
    hooks.around(Base, "init", lambda original, cls: f"<{original(cls)}>")
    assert (Base.init(), Base().init(), Derived.init()) == ("<Base>", "<Base>", "<Derived>")
    hooks.remove()
    assert Derived.init() == "Derived"


def test_a_profiler_of_the_program_is_known_of_before_it_begins() -> None:
    # Given: two functions that may begin it
    module, hooks = ModuleType("library"), MethodHooks()
    happened: list[str] = []
    module.prepare = lambda: happened.append("prepare")  # type: ignore[attr-defined]
    module.enable = lambda: happened.append("enable")  # type: ignore[attr-defined]
    for name in ("prepare", "enable"):
        hooks.once_before(module, name, lambda: happened.append("ours ends"))
    # When: the program begins
    module.prepare()
    module.enable()
    # Then: ours ends first, and once
    assert happened == ["ours ends", "prepare", "enable"]


def test_an_error_of_ours_does_not_reach_the_program() -> None:
    hooks = MethodHooks()

    def fail() -> None:
        message = "the window is lost"
        raise RuntimeError(message)

    hooks.once_before(Base, "step", fail)
    assert Base().step(5) == 5
    assert hooks.remove()


def test_threads_that_remove_at_once_undo_everything_once() -> None:
    hooks = MethodHooks()
    for number in range(1000):
        hooks.put(Base, f"made_{number}", number)
    barrier = threading.Barrier(4)

    def remove() -> None:
        barrier.wait()
        hooks.remove()

    threads = [threading.Thread(target=remove) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not [name for name in vars(Base) if name.startswith("made_")]
