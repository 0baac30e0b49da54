"""The hands of checkpoints on a real loop: work is answered by events, and a disk that forgets ends the process."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plugml.runtime import checkpoints
from plugml.server import savedisk
from plugml.server.effects import (
    ManifestWritten,
    RangeRead,
    RangeWritten,
    ReadRange,
    TidySaves,
    WriteManifest,
    WriteRange,
)

from .save_world import SaveWorld
from .test_runtime_checkpoints import kept
from .test_server_checkpoint import quiet, spec_of, trained


@pytest.fixture
def first(tmp_path: Path) -> list[Any]:
    """What is to be written for one checkpoint."""
    done: list[Any] = []
    world = SaveWorld(spec_of(tmp_path / "root"), 1, loss=0, double=0)
    world.spoil = lambda effect: done.append(kept(effect))
    trained(world, 5)
    quiet(world)
    savedisk.tidy(TidySaves(str(tmp_path / "root"), 1, 0))
    return done


def perform(effects: list[Any], until: Callable[[list[Any], list[tuple[int, str]]], bool]) -> tuple[list[Any], list[tuple[int, str]]]:
    """As a node does; what was fed back, and with what it was stopped."""
    fed: list[Any] = []
    stops: list[tuple[int, str]] = []
    ends: list[Callable[[], object]] = []

    async def act() -> None:
        loop = asyncio.get_running_loop()
        node: Any = SimpleNamespace(
            loop=loop, performers={}, at_end=ends.append, feed=lambda sender, event: fed.append(event), stop=lambda code, text: stops.append((code, text)),
        )  # fmt: skip
        savedisk.attach(node)
        for effect in effects:
            node.performers[type(effect)](effect)
        async with asyncio.timeout(60):
            while not until(fed, stops):
                await asyncio.sleep(0.01)
        for end in ends:
            end()

    asyncio.run(act())
    return fed, stops


def test_work_is_done_in_order_and_answered(first: list[Any], tmp_path: Path) -> None:
    fed, stops = perform(first, lambda fed, stops: any(isinstance(event, ManifestWritten) for event in fed))
    assert not stops and not any(event.problem for event in fed)
    found, _ = checkpoints.newest(tmp_path / "root")
    assert found is not None and found.clock == 4
    number = next(effect.range for effect in first if isinstance(effect, WriteRange))
    read, _ = perform([ReadRange(1, number, str(found.place), spec_of(tmp_path / "root"), 4)], lambda fed, stops: bool(fed))
    assert isinstance(read[0], RangeRead) and read[0].dump is not None and not read[0].problem


def test_a_failed_sync_ends_the_process_and_other_errors_do_not(first: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = next(effect for effect in first if isinstance(effect, WriteRange))

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        fed, stops = perform([write], lambda fed, stops: bool(fed or stops))
    assert not fed and stops[0][0] == savedisk.EX_IOERR and "nothing that was written since then can be trusted" in stops[0][1]
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *names: (_ for _ in ()).throw(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        fed, stops = perform([write], lambda fed, stops: bool(fed or stops))
    assert not stops and isinstance(fed[0], RangeWritten) and "No space left" in fed[0].problem
    assert not list((tmp_path / "root").rglob("*.safetensors"))


def test_places_that_cannot_be_are_told(first: list[Any], tmp_path: Path) -> None:
    write = next(effect for effect in first if isinstance(effect, WriteRange))
    (tmp_path / "file").write_text("")
    told = savedisk.write(write._replace(spec=spec_of(tmp_path / "file" / "below")))
    assert "cannot be made" in told.problem
    assert "its name is no number" in savedisk.read(ReadRange(1, 0, str(tmp_path), write.spec, 4)).problem
    assert "cannot be read" in savedisk.read(ReadRange(1, 0, str(tmp_path / "000009"), write.spec, 4)).problem
    assert "cannot be written" in savedisk.complete(WriteManifest(1, 9, str(tmp_path / "none"), 0, {}, {}, ())).problem
