"""The rules of checkpoints, broken one by one: `docs/internals.md` 9."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from plugml.core.errors import WorldError
from plugml.launch import resume
from plugml.master import saves
from plugml.runtime import checkpoints, solid
from plugml.server import checkpoint, rangefiles
from plugml.server.dump import blank, octets
from plugml.server.effects import TidySaves, WriteRange
from plugml.server.holding import Holding
from plugml.server.members import Members
from plugml.server.saving import Held, Saving

from . import stories
from .mutant import Mutant
from .resumed import Resumed
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


def dark(**rates: Any) -> Callable[[World, Plan], None]:
    """The same while hosts of servers lose power."""

    def bias(world: World, plan: Plan) -> None:
        saving(**{"server_crash_us": 150_000, "power_loss": 1.0, "think_us": (1_000, 20_000), "write_us": (100, 10_000), **rates})(world, plan)
        plan.servers, plan.server_hosts, plan.careful = 3, 0, True
        assert plan.spec is not None
        plan.spec = replace(plan.spec, copies=2, min_insync=1)

    return bias


def going_on(consistency: str = "bsp", **rates: Any) -> Callable[[World, Plan], None]:
    """The whole cluster ends, and another one goes on from what is kept."""

    def bias(world: World, plan: Plan) -> None:
        saving(consistency, **rates)(world, plan)
        plan.resumes = 1 + world.seed % 3
        assert plan.spec is not None
        plan.spec = replace(plan.spec, pieces=0, passes=0, settings={}, stop_clock=0)

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


def cut_when_asked(original: Original) -> Original:
    """Each range is cut when the question comes to it, wherever it stands."""

    def on_ask(self: Saving, hosted: Any, ask: Any) -> Any:
        for key, held in list(self.held.items()):
            if key[0] == ask.job and held.number == ask.number and held.state == "kept":
                self._drop(key)
        return original(self, hosted, ask._replace(fuzzy=True))

    return on_ask


def write_and_hope(original: Original) -> Original:
    """The manifest is written while its files are not synced."""

    def write(scratch: Any, buffers: Any) -> Any:
        with patch.object(solid, "sync", lambda fd, path: None):
            return original(scratch, buffers)

    return write


def no_directories(original: Original) -> Original:
    """Names are not synced."""
    return lambda place: None


def only_the_root(original: Original) -> Original:
    """Whoever has made the directory of checkpoints has not synced the one above it."""
    return lambda folder: solid.sync_directories(folder, folder.parent)


def ignore_failed_syncs(original: Original) -> Original:
    def sync(fd: int, path: Any) -> None:
        with suppress(OSError):
            os.fsync(fd)

    return sync


def look_at_sizes(original: Original) -> Original:
    return lambda manifest: checkpoints._check_sizes(manifest.place.parent, manifest.files)


def refer_to_what_failed(original: Original) -> Original:
    """What may be damaged is needed again."""

    def on_manifest(self: checkpoint.Checkpoints, hosted: Any, done: Any, now_us: int) -> Any:
        base = hosted.clock.saves.base if hosted.clock is not None else 0
        effects = original(self, hosted, done, now_us)
        if hosted.clock is not None:
            hosted.clock.saves.base = base
        return effects

    return on_manifest


def tidy_early(original: Original) -> Original:
    """The one before goes when the new one is written, and not when it is kept."""

    def on_manifest(self: checkpoint.Checkpoints, hosted: Any, done: Any, now_us: int) -> Any:
        effects = original(self, hosted, done, now_us)
        return effects if done.problem else [TidySaves(hosted.spec.checkpoint_dir, done.number, 1), *effects]

    return on_manifest


def replace_what_is_there(original: Original) -> Original:
    """A late question has a range of a checkpoint that is kept written once more, as it stands by then."""

    def place(path: Any, buffers: Any) -> Any:
        scratch = path.with_name(f".{path.name}.tmp")
        scratch.unlink(missing_ok=True)
        written = solid.write(scratch, buffers)
        os.rename(scratch, path)
        return written

    return place


def release_at_once(original: Original) -> Original:
    """Members that were held at the cut go on before each range has its part of it."""

    def begin(self: checkpoint.Checkpoints, hosted: Any, begun: Any, now_us: int) -> Any:
        return [*original(self, hosted, begun, now_us), *self._release(hosted, now_us)]

    return begin


def believe_the_files(original: Original) -> Original:
    """What is read is not summed up."""

    def read(file: Any, header: Any, name: str, wanted: Any, crc: int) -> Any:
        array = blank(wanted)
        file.seek(header.start + header.offsets[name])
        file.readinto(octets(array))
        return array

    return read


def rewind_the_clock(original: Original) -> Original:
    """Streams and what was staged are those of programs that are no more."""

    def rewind(self: Holding, closed: int) -> None:
        if self.clock is not None:
            self.clock.rewind(closed)

    return rewind


def nothing(original: Original) -> Original:
    return lambda self, *arguments: None


def forget_who_had_left(original: Original) -> Original:
    """Whoever ended before the cut is there again behind it."""
    return lambda found: ()


def take_the_newest(original: Original) -> Original:
    """The newest checkpoint, whole or not."""

    def newest(root: Any) -> tuple[checkpoints.Manifest | None, list[str]]:
        for number in reversed(checkpoints.numbers(root)):
            with suppress(WorldError):
                return checkpoints.read(root / checkpoints.folder(number)), []
        return None, []

    return newest


MUTANTS_OF_SAVES: tuple[Mutant, ...] = (
    Mutant("keeper: one range less", checkpoint.Attempt, "__init__", one_range_less, saving()),
    Mutant("keeper: parts of any checkpoint", checkpoint.Checkpoints, "on_wrote", any_number, saving(net_double=0.4, net_straggle=0.4, disk_full=0.1)),
    Mutant("server: write what is stepped on", Saving, "_go_on", let_go_early, saving()),
    Mutant("disk: tidy what is needed", checkpoints, "tidy", tidy_all, saving()),
    Mutant("master: point at what failed", saves, "note", keep_what_failed, saving(disk_full=0.3)),
    Mutant("server: cut when asked", Saving, "on_ask", cut_when_asked, saving()),
    Mutant("keeper: tidy before it is kept", checkpoint.Checkpoints, "on_manifest", tidy_early, saving()),
    Mutant("keeper: refer to what failed", checkpoint.Checkpoints, "on_manifest", refer_to_what_failed, saving(flips=0.1)),
    Mutant("disk: manifest before files are synced", solid, "write", write_and_hope, dark()),
    Mutant("disk: no directory is synced", solid, "_sync_directory", no_directories, dark()),
    Mutant("disk: the way to the checkpoints is not synced", solid, "sync_path", only_the_root, dark()),
    Mutant("disk: go on after a failed sync", solid, "sync", ignore_failed_syncs, dark(sync_error=0.5)),
    Mutant("reader: sizes are enough", checkpoints, "verify", look_at_sizes, saving(flips=0.1)),
    Mutant("reader: believe the files", rangefiles, "_read", believe_the_files, going_on(flips=0.3), Resumed),
    Mutant("launcher: take what is damaged", checkpoints, "newest", take_the_newest, going_on(flips=0.1), Resumed),
    Mutant("launcher: forget who had left", resume, "_absent", forget_who_had_left, going_on(program_kill_us=10_000, gone=1.0), Resumed),
    Mutant("restore: what was under way goes on", Holding, "rewind", rewind_the_clock, going_on(), Resumed),
    Mutant("restore: members stand where they stood", Members, "rewind", nothing, going_on(), Resumed),
    # -- that chance shows too rarely
    Mutant("disk: replace what is there", solid, "place", replace_what_is_there, story=stories.a_file_of_a_checkpoint_is_written_once_more),
    Mutant("keeper: release at once", checkpoint.Checkpoints, "begin", release_at_once, story=stories.members_are_held_at_a_cut),
)  # fmt: skip
