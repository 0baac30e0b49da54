"""The masters' state store in memory: survives them, answers late, and sometimes does not say what it did."""

from __future__ import annotations

from collections.abc import Callable

from .world import Violation, World

Answer = Callable[[str, str, int, bytes], None]  # key, outcome, version, value


class MemoryStore:
    """Versioned values by key.  A write is durable at the moment when it happens; its answer may be `unknown`.

    `stored(key, value)` is called at each write, before anybody hears of it.  `who` is the asking master's endpoint: one
    that is cut off hears nothing certain.
    """

    def __init__(self, world: World, unknown_rate: float = 0.0, delay_us: tuple[int, int] = (50, 2_000)) -> None:
        self.world = world
        self.unknown_rate = unknown_rate
        self.delay_us = delay_us
        self.late_us = 300_000  # the latest that a write comes of which nobody knows whether it came
        self.values: dict[str, tuple[int, bytes]] = {}
        self.history: list[tuple[str, int]] = []
        self.stored: Callable[[str, bytes], None] = lambda key, value: None
        self._cuts: dict[str, int] = {}  # who -> until

    # -- faults that last

    def cut(self, who: str, duration_us: int) -> None:
        self._cuts[who] = self.world.now_us + duration_us
        self.world.fault("store cut off", f"{who} for {duration_us} us")

    def heal(self) -> None:
        self.unknown_rate = 0.0
        self._cuts.clear()

    # -- questions

    def read(self, key: str, answer: Answer, who: str = "") -> None:
        if self._unsure(who):
            self._later(answer, key, "unknown", 0, b"")
        else:
            self._later(answer, key, "ok", *self.values.get(key, (0, b"")))

    def compare_and_swap(self, key: str, version: int, value: bytes, answer: Answer, who: str = "") -> None:
        """Store `value` if the key is at `version` (0 = absent).  Happens now, answers later."""
        if not isinstance(value, bytes):
            raise Violation(f"the store was given {type(value).__name__} for {key}")
        world = self.world
        if self._unsure(who):
            fate = ("stored", "not stored", "stored later")[world.draw(0, 2)]
            world.fault("store unknown", f"{key} at {version}: {fate}")
            if fate == "stored":
                self._swap(key, version, value)
            elif fate == "stored later":
                world.after(world.draw(1_000, self.late_us), self._swap, key, version, value)
            self._later(answer, key, "unknown", version, value)
            return
        stored_version, stored = self.values.get(key, (0, b""))
        if version != stored_version:
            world.note("store", "conflict", f"{key} {version} is at {stored_version}")
            self._later(answer, key, "conflict", stored_version, stored)
            return
        self._put(key, version + 1, value)
        self._later(answer, key, "ok", version + 1, value)

    def _unsure(self, who: str) -> bool:
        return self._cuts.get(who, 0) > self.world.now_us or self.world.happens(self.unknown_rate)

    def _later(self, answer: Answer, *words: object) -> None:
        self.world.after(self.world.draw(*self.delay_us), answer, *words)

    def _swap(self, key: str, version: int, value: bytes) -> None:
        if self.values.get(key, (0, b""))[0] == version:
            self._put(key, version + 1, value)

    def _put(self, key: str, version: int, value: bytes) -> None:
        self.values[key] = (version, value)
        self.history.append((key, version))
        self.world.fold_bytes(value)
        self.stored(key, value)
