"""The rules of checkpoints, broken one by one: `docs/internals.md` 9."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plugml.master import saves
from plugml.runtime import checkpoints
from plugml.server import checkpoint
from plugml.server.effects import WriteRange
from plugml.server.saving import Held, Saving

from .mutant import Mutant
from .weather import Plan, saved
from .weathers import under
from .world import World

Original = Callable[..., Any]


def saving(consistency: str = "bsp", every: int = 1, **rates: Any) -> Callable[[World, Plan], None]:
    """A job with many checkpoints, which take their time."""

    def bias(world: World, plan: Plan) -> None:
        under(consistency, **{"think_us": (100, 3_000), "write_us": (1_000, 60_000), "clocks": 30, **rates})(world, plan)
        plan.rounds, plan.others = 1, []
        assert plan.spec is not None
        plan.spec = saved(plan.spec, every)

    return bias


def one_range_less(original: Original) -> Original:
    """One range is not waited for."""

    def init(self: checkpoint.Attempt, *arguments: Any) -> None:
        original(self, *arguments)
        if len(self.primaries) > 1:
            self.primaries.popitem()

    return init


def any_number(original: Original) -> Original:
    """What a range has written of an earlier checkpoint is as good."""

    def on_wrote(self: checkpoint.Checkpoints, hosted: Any, sender: str, wrote: Any, now_us: int) -> Any:
        attempt = self._attempts.get(hosted.number)
        return original(self, hosted, sender, wrote if attempt is None else wrote._replace(number=attempt.number), now_us)

    return on_wrote


def let_go_early(original: Original) -> Original:
    """Steps write again into what waits to be written."""

    def go_on(self: Saving, hosted: Any, held: Held) -> Any:
        effects = original(self, hosted, held)
        if any(type(effect) is WriteRange for effect in effects) and held.dump is not None:
            held.replica.range.let_go(held.dump)
        return effects

    return go_on


def tidy_all(original: Original) -> Original:
    """Whatever is older goes, also what the newest one refers to."""

    def tidy(root: Any, number: int, keep: int) -> None:
        for known in checkpoints.numbers(root):
            if known < number:
                checkpoints.discard(root, known)

    return tidy


def keep_what_failed(original: Original) -> Original:
    return lambda state, sender, ask: original(state, sender, ask._replace(problem=""))


MUTANTS_OF_SAVES: tuple[Mutant, ...] = (
    Mutant("keeper: one range less", checkpoint.Attempt, "__init__", one_range_less, saving()),
    Mutant("keeper: parts of any checkpoint", checkpoint.Checkpoints, "on_wrote", any_number, saving(net_double=0.4, net_straggle=0.4, disk_full=0.1)),
    Mutant("server: write what is stepped on", Saving, "_go_on", let_go_early, saving()),
    Mutant("disk: tidy what is needed", checkpoints, "tidy", tidy_all, saving()),
    Mutant("master: point at what failed", saves, "note", keep_what_failed, saving(disk_full=0.3)),
)  # fmt: skip
