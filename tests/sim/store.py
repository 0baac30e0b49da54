"""The master's state store in memory: survives the master, answers late, and sometimes does not say what it did."""

from __future__ import annotations

from collections.abc import Callable

from .world import Violation, World


class MemoryStore:
    """Versioned values by key.  A write is durable at the moment when it happens; its answer may be `unknown`."""

    def __init__(self, world: World, unknown_rate: float = 0.0, delay_us: tuple[int, int] = (50, 2_000)) -> None:
        self.world = world
        self.unknown_rate = unknown_rate
        self.delay_us = delay_us
        self.values: dict[str, tuple[int, bytes]] = {}
        self.history: list[tuple[str, int]] = []

    def compare_and_swap(
        self, key: str, version: int, value: bytes, answer: Callable[[str, str, int, bytes], None]
    ) -> None:
        """Store `value` if the key is at `version` (0 = absent).  Happens now, answers later."""
        stored_version, stored = self.values.get(key, (0, b""))
        if not isinstance(value, bytes):
            raise Violation(f"the store was given {type(value).__name__} for {key}")
        world = self.world
        if world.happens(self.unknown_rate):
            fate = ("stored", "not stored", "stored later")[world.draw(0, 2)]
            world.fault("store unknown", f"{key} at {version}: {fate}")
            if fate == "stored":
                self._swap(key, version, value)
            elif fate == "stored later":
                world.after(world.draw(1_000, 300_000), self._swap, key, version, value)
            world.after(world.draw(*self.delay_us), answer, key, "unknown", version, value)
            return
        if version != stored_version:
            world.note("store", "conflict", f"{key} {version} is at {stored_version}")
            world.after(world.draw(*self.delay_us), answer, key, "conflict", stored_version, stored)
            return
        self._put(key, version + 1, value)
        world.after(world.draw(*self.delay_us), answer, key, "ok", version + 1, value)

    def _swap(self, key: str, version: int, value: bytes) -> None:
        if self.values.get(key, (0, b""))[0] == version:
            self._put(key, version + 1, value)

    def _put(self, key: str, version: int, value: bytes) -> None:
        self.values[key] = (version, value)
        self.history.append((key, version))
        self.world.fold_bytes(value)
