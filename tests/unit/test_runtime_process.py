"""Children: what they print never blocks us or grows, how they end is known exactly, and they die with us."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator

import pytest
import uvloop

from plugml.runtime.output import CUT, END, LINE_BYTES_MAX, NEWLINE, RETURN, Piece, Splitter, Tail, readable
from plugml.runtime.process import Child, Exit, spawn

HANG_S = 60.0


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    errors: list[object] = []
    loop.set_exception_handler(lambda loop, context: errors.append(context))
    yield loop
    asyncio.set_event_loop(None)
    loop.close()
    assert not errors


class Run:
    """A child with everything it says."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *argv: str, **options: object) -> None:
        self.out: list[bytes] = []
        self.err: list[bytes] = []
        self.pieces: list[Piece] = []
        self.loop = loop
        self.ended: asyncio.Future[Exit] = loop.create_future()
        self.child: Child = spawn(
            loop, argv, on_exit=self.ended.set_result, on_stdout=self.out.append, on_stderr=self.err.append,
            on_stderr_piece=self.pieces.append, **options,  # type: ignore[arg-type]
        )  # fmt: skip

    def wait(self) -> Exit:
        return self.loop.run_until_complete(asyncio.wait_for(self.ended, HANG_S))

    def until(self, holds: Callable[[], bool]) -> None:
        async def watch() -> None:
            while not holds():
                await asyncio.sleep(0.005)

        self.loop.run_until_complete(asyncio.wait_for(watch(), HANG_S))


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "end", "words"), [
    ("exit 0", Exit(0), "exit code 0"),
    ("exit 3", Exit(3), "exit code 3"),
    ("kill -SEGV $$", Exit(-1, 11), "killed by signal 11 (SIGSEGV)"),
    ("kill -9 $$", Exit(-1, 9), "killed by signal 9 (SIGKILL)"),
])  # fmt: skip
def test_the_end_is_known_exactly(loop: asyncio.AbstractEventLoop, command: str, end: Exit, words: str) -> None:
    exit_ = Run(loop, "sh", "-c", f"ulimit -c 0; {command}").wait()
    assert exit_ == end and str(exit_) == words


def test_both_streams_come_apart_and_whole(loop: asyncio.AbstractEventLoop, no_leaks: None) -> None:
    run = Run(loop, "sh", "-c", "echo to out; echo to err >&2; printf last >&2")
    assert run.wait().code == 0
    assert b"".join(run.out) == b"to out\n" and b"".join(run.err) == b"to err\nlast"
    assert run.pieces == [Piece("to err", NEWLINE), Piece("last", END)]
    assert run.out[-1] == run.err[-1] == b""


def test_a_program_that_is_not_there_is_named(loop: asyncio.AbstractEventLoop, no_leaks: None) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        Run(loop, "./no such trainer")
    assert caught.value.filename == "./no such trainer"
    with pytest.raises(FileNotFoundError) as caught:
        Run(loop, "sh", stdin="/no/such/input")
    assert caught.value.filename == "/no/such/input"


def test_the_child_has_its_own_group_null_for_input_and_our_variables_only(loop: asyncio.AbstractEventLoop) -> None:
    code = "import os,sys; print(os.getpid()==os.getpgrp(), repr(sys.stdin.read()), os.environ.get('A'), os.getcwd())"
    run = Run(loop, sys.executable, "-I", "-c", code, env={"A": "b\nc"}, cwd="/")
    assert run.wait().code == 0
    assert b"".join(run.out) == b"True '' b\nc /\n"


def test_input_comes_from_a_file(loop: asyncio.AbstractEventLoop, tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "data 1")
    with open(path, "w") as file:
        file.write("1 2 3\n")
    run = Run(loop, "cat", stdin=path)
    assert run.wait().code == 0 and b"".join(run.out) == b"1 2 3\n"


def test_what_a_program_left_running_is_swept_and_its_open_pipe_keeps_nobody(
    loop: asyncio.AbstractEventLoop, no_leaks: None
) -> None:
    run = Run(loop, "sh", "-c", "sleep 1000 & echo $!; exit 5")
    assert run.wait().code == 5
    _wait_gone(int(b"".join(run.out)))


def test_a_filter_behind_the_output_writes_its_rest(loop: asyncio.AbstractEventLoop, no_leaks: None) -> None:
    """bash does not wait for it: it ends when its input does, a moment after the program."""
    run = Run(loop, "bash", "-c", "exec > >(sed s/^/T/); seq 3000; exit 3")
    assert run.wait() == Exit(3)
    assert b"".join(run.out) == b"".join(b"T%d\n" % number for number in range(1, 3001))


def test_stop_asks_first_and_kills_when_the_grace_is_over(loop: asyncio.AbstractEventLoop, no_leaks: None) -> None:
    polite = Run(loop, "sh", "-c", "trap 'echo bye; exit 7' TERM; echo on; while :; do sleep 0.01; done")
    polite.until(lambda: b"on\n" in b"".join(polite.out))
    polite.child.stop(HANG_S)
    assert polite.wait() == Exit(7)

    deaf = Run(loop, "sh", "-c", "trap '' TERM; echo on; while :; do sleep 0.01; done")
    deaf.until(lambda: b"on\n" in b"".join(deaf.out))
    deaf.child.stop(0.05)
    assert deaf.wait() == Exit(-1, signal.SIGKILL)


def test_a_stopped_child_can_be_ended(loop: asyncio.AbstractEventLoop, no_leaks: None) -> None:
    run = Run(loop, "sh", "-c", "echo on; kill -STOP $$; echo never")
    run.until(lambda: bool(run.out))
    run.child.stop(HANG_S)
    assert run.wait() == Exit(-1, signal.SIGTERM)


def test_a_signal_after_the_end_hits_nobody(loop: asyncio.AbstractEventLoop) -> None:
    run = Run(loop, "true")
    run.wait()
    run.child.signal(signal.SIGKILL)
    run.child.stop(0.0)


def test_a_program_that_became_another_user_is_waited_for(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int, signum: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    run = Run(loop, "sh", "-c", "exit 3")
    monkeypatch.setattr(os, "killpg", refused)
    run.child.signal(15)
    assert run.wait() == Exit(3)


def test_children_die_when_their_parent_is_killed(no_leaks: None) -> None:
    code = """
import asyncio, sys, uvloop
from plugml.runtime.process import spawn
loop = uvloop.new_event_loop()
child = spawn(loop, ["sleep", "1000"])
print(child.pid, flush=True)
loop.run_forever()
"""
    read_end, write_end = os.pipe()
    parent = os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ, file_actions=[
        (os.POSIX_SPAWN_DUP2, write_end, 1),
    ])  # fmt: skip
    os.close(write_end)
    with os.fdopen(read_end) as told:
        pid = int(told.readline())
        pidfd = os.pidfd_open(pid)
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        assert select.select([pidfd], [], [], HANG_S)[0]
        os.close(pidfd)


# -- output -----------------------------------------------------------------------------------------------------------

FLOOD = r"""
import os, sys
err = sys.stderr.buffer
err.write(b"e" * 300_000); err.flush()
for _ in range(50): sys.stdout.buffer.write(b"x" * 1_000_000)
sys.stdout.buffer.write(b"\n")
for i in range(200): sys.stdout.buffer.write(b"%d %%\r" % i)
sys.stdout.buffer.write(b"\xff\xfe caf\xe9 \x00\x00 end\n"); sys.stdout.flush()
err.write(b"\nValueError: the cause\n"); err.flush()
"""


def test_a_flood_passes_whole_without_growing(loop: asyncio.AbstractEventLoop, no_leaks: None) -> None:
    pieces: list[Piece] = []
    total = {"out": 0, "err": 0}

    def count(name: str) -> Callable[[bytes], None]:
        def add(chunk: bytes) -> None:
            total[name] += len(chunk)

        return add

    def longest(piece: Piece) -> None:
        assert len(piece.text) <= 4 * LINE_BYTES_MAX
        if piece.ended != CUT:
            pieces.append(piece)

    ended: asyncio.Future[Exit] = loop.create_future()
    child = spawn(
        loop, [sys.executable, "-I", "-c", FLOOD], on_exit=ended.set_result,
        on_stdout=count("out"), on_stderr=count("err"), on_stdout_piece=longest,
    )  # fmt: skip
    before = _peak_kib()
    assert loop.run_until_complete(asyncio.wait_for(ended, HANG_S)) == Exit(0)
    assert _peak_kib() - before < 20_000
    assert total["err"] == 300_000 + 23 and total["out"] > 50_000_000
    assert child.stderr.tail.lines(3) == ["ValueError: the cause"]
    assert pieces[-1] == Piece("\\xff\\xfe caf\\xe9 \\x00\\x00 end", NEWLINE)
    assert [piece.text for piece in pieces[-4:-1]] == ["197 %", "198 %", "199 %"]


def test_a_reader_that_has_no_room_stops_the_program_not_us(loop: asyncio.AbstractEventLoop, no_leaks: None) -> None:
    taken = []

    def take(chunk: bytes) -> bool:
        taken.append(len(chunk))
        return False

    ended: asyncio.Future[Exit] = loop.create_future()
    child = spawn(loop, ["sh", "-c", "head -c 1000000 /dev/zero; echo done >&2"], on_exit=ended.set_result, on_stdout=take)
    loop.run_until_complete(asyncio.sleep(0.3))
    assert len(taken) == 1 and child.exit is None

    async def resume() -> None:
        while not ended.done():
            child.stdout.resume()
            await asyncio.sleep(0.001)

    loop.run_until_complete(asyncio.wait_for(resume(), HANG_S))
    assert ended.result() == Exit(0) and sum(taken) == 1_000_000


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_pieces_do_not_depend_on_how_the_bytes_arrive(size: int) -> None:
    text = "one\r\ntwo\n\n10 %\r20 %\r\nlong " + "ä" * 40 + "\nrest\r"
    whole = Splitter(16)
    expected = whole.feed(text.encode()) + whole.end()
    splitter = Splitter(16)
    raw = text.encode()
    pieces = [piece for at in range(0, len(raw), size) for piece in splitter.feed(raw[at : at + size])] + splitter.end()
    assert [p for p in pieces if p.text or p.ended != CUT] == expected
    assert Piece("10 %", RETURN) in pieces and pieces[-1] == Piece("rest", END)
    assert "".join(p.text for p in pieces if "ä" in p.text).count("ä") == 40
    assert "\\x" not in "".join(p.text for p in pieces)


def test_the_tail_is_readable() -> None:
    tail = Tail(64)
    tail.feed(b"x" * 1000 + b"\n 10%\r 50%\r100%\r\nbad \xff \x1b[31mred\x00\n")
    assert tail.lines(2) == ["100%", "bad \\xff \x1b[31mred\\x00"]
    assert len(tail.raw()) == 64
    assert Tail(10).lines(5) == []
    assert readable("déjà\tvu".encode()) == "déjà\tvu"


def _wait_gone(pid: int) -> None:
    """Wait for the end of somebody else's child (as a zombie it may stay: that is its parent's affair)."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = select.select([pidfd], [], [], HANG_S)[0]
    os.close(pidfd)
    assert ended, "still there"


def _peak_kib() -> int:
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("VmHWM")).split()[1])
