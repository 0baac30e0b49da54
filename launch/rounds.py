"""Between an unchanged program and its channel: a process that writes the model file, runs the program, and pushes what came of it.

    pull -> write FILE -> the program, from its start to its end -> read FILE, judge it -> push the difference -> next round

A process of its own for each worker, started by the launcher in the worker's private directory, and an ordinary client of
the channel.  Whatever is wrong with the file, nothing of that round is pushed.  A program that a signal killed takes this
process with it, the same way, so that the launcher's rules for killed workers hold.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..client import ChannelError, Client, attach
from ..core.errors import PlugmlError, UsageError
from ..layouts import Content, Layout, LayoutError, matches, parse_layout, place_of, read, write
from . import words
from .modelfile import ADD, ASSIGN, LINES, TABLE, ModelFile, Round
from .roundfiles import Listener, OwnFiles, left_in, lines_in, replace_file
from .rules import reading_of

MODULE = "plugml.launch.rounds"
ROUND = "{round}"


def between(told: Round | None, argv: list[str]) -> list[str]:
    """The command that runs a worker: the program itself, or this module around it."""
    if told is None:
        return argv
    return [sys.executable, "-P", "-m", MODULE, told.to_text(), "--", *argv]  # -P: no module of the user's directory instead of ours


def measure(path: str, layout: str) -> int:
    """How many numbers are in a model file.  Raises `UsageError`."""
    try:
        with open(path, "rb") as file:
            return read(file.read(), parse_layout(layout)).numbers.size
    except OSError as error:
        raise UsageError(f"--model {path}: {error.strerror}; run the program once, so that it is there") from error
    except LayoutError as error:
        raise UsageError(f"--model {path}: {error}") from error


def settle(model: ModelFile, directory: str, outs: Sequence[str], wanted: bool) -> str:
    """At the end of a run: the user's file is replaced by what the first worker of those that came to an end has left, if it is `wanted`.

    `outs` are the workers' directories, in order of their numbers.  Gives what went wrong, "" if nothing did.
    """
    try:
        left = [place for place in (left_in(out, model.file) for out in outs) if os.path.exists(place)]
        if left and wanted:
            with open(left[0], "rb") as file:
                replace_file(os.path.join(directory, model.file), file.read())
        for place in left:
            os.unlink(place)
    except OSError as error:
        return f"{model.file} could not be replaced: {error.strerror}; the model is in {outs[0]}"
    return "" if left or not wanted else f"{model.file} is as it was: no worker has come to the end of a round"


class RoundError(PlugmlError):
    """A round that cannot be: nothing of it was pushed."""

    exit_code = 1


class Rounds:
    """One worker's rounds."""

    def __init__(self, told: Round, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self.told, self.model, self.argv = told, told.model, argv
        self.layout: Layout = parse_layout(told.model.layout)
        self.files = OwnFiles(told.directory, told.model.file, told.model.side, environ["PLUGML_OUT"])
        # The program runs alone, also one that could be plugged.
        self.environ = {name: value for name, value in environ.items() if name != "PLUGML_DIR"}
        self.said: set[str] = set()
        self.state: tuple[Content, Any, Any] | None = None  # after the last whole round: the program's file, the shared values, which numbers are its own

    def run(self, plug: Client, again: bool) -> None:
        """All rounds, from the clock that the job is at.  `again`: this worker's incarnation is not its first."""
        content = read(self.files.lay_out(again), self.layout)
        self._check(plug, content)
        values = content.numbers.copy()
        plug.init({TABLE: values})
        plug.pull({TABLE: values})
        own = np.zeros(values.size, np.bool_)  # counters, which are this program's alone
        for clock in plug.clocks(self.model.rounds):
            given = self._given(content, np.where(own, content.numbers, values))
            output = self._run_program(clock)
            taken = self._taken(given, clock)
            own |= self._counters(given, taken, clock)
            fresh = values.copy()
            plug.step({TABLE: self._push(given, taken, own)}, {TABLE: fresh}, weight=self._weight(output))
            if plug.clock == clock:
                break  # the job had ended before: what this round made belongs to nobody
            content, values = taken, fresh
            self.state = content, values, own.copy()
            self.files.accept(content.data)
            self._show(clock, output)
        self.state = content, values, own
        self.leave()

    def _check(self, plug: Client, content: Content) -> None:
        if plug.table(TABLE).elements != content.numbers.size:
            raise RoundError(f"{self.model.file} has {content.numbers.size:,} numbers, and the job shares {plug.table(TABLE).elements:,}: it has changed since the run began")

    def _given(self, content: Content, values: Any) -> Content:
        """Write the file for the program, and read what it says then: it may keep fewer digits than the servers."""
        try:
            data = write(content, values)
        except LayoutError as error:
            raise RoundError(f"{self.model.file} cannot be written for the program: {error}") from error
        self.files.give(data)
        return read(data, self.layout)

    def _run_program(self, clock: int) -> str:
        argv = [word.replace(ROUND, str(clock)) for word in self.argv]
        before = self.files.shared()
        listens = bool(self.model.metric or (self.model.weight and self.model.weight != LINES))
        try:
            listener = Listener(listens)
            child = subprocess.Popen(argv, env={**self.environ, "PLUGML_CLOCK": str(clock)}, stdout=listener.stdout, stderr=listener.stderr, preexec_fn=_with_parent(os.getpid()))
        except OSError as error:
            raise _NotStartedError(words.command_line(argv), error) from error
        output = listener.listen(child)
        status = child.wait()
        if status < 0:
            self._note(f"round {clock}: {words.signal_name(-status)} ended {words.command_line(argv)}; nothing of the round was pushed")
            _end_like(-status)
        if status not in self.told.ok_exit:
            raise _FailedError(f"round {clock}: {words.command_line(argv)} has ended with exit code {status}; nothing of the round was pushed", status)
        for name in self.files.changed(before):
            if name not in self.said:
                self.said.add(name)
                self._note(f"{name}, which all workers share, has changed while the program ran; if the program writes it, say --side {name}")
        return output

    def _taken(self, given: Content, clock: int) -> Content:
        try:
            data = self.files.take()
            taken = read(data, self.layout)
        except (OSError, LayoutError) as error:
            text = error.strerror if isinstance(error, OSError) else str(error)
            raise RoundError(f"round {clock}: {self.model.file} as the program left it cannot be used: {text}. Nothing of the round was pushed") from error
        if data == given.data and "" not in self.said:
            self.said.add("")
            self._note(f"round {clock}: the program has ended well and left {self.model.file} as it was: does it write to this file?")
        return taken

    def _counters(self, given: Content, taken: Content, clock: int) -> Any:
        """Numbers that the program counts for itself; said once, since nobody else gets them."""
        try:
            counted = matches(given, taken)
        except LayoutError as error:
            raise RoundError(f"round {clock}: {self.model.file} as the program left it cannot be compared: {error}. Nothing of the round was pushed") from error
        if counted.any() and "counted" not in self.said:
            self.said.add("counted")
            number, place = int(np.count_nonzero(counted)), place_of(taken, int(np.argmax(counted)))
            self._note(f"{words.count(number, 'whole number')} of {self.model.file} ({place}) has changed: taken for a counter, which each worker has for itself")
        return counted

    def _push(self, given: Content, taken: Content, own: Any) -> Any:
        if self.model.push == ASSIGN:
            return taken.numbers
        step = taken.numbers - given.numbers if self.model.push == ADD else given.numbers - taken.numbers
        return np.where(own, 0.0, step)

    def _weight(self, output: str) -> float:
        if not self.model.weight:
            return 1.0
        if self.model.weight == LINES:
            return float(lines_in(self.told.data))
        weight = reading_of(output, self.model.weight)
        if weight is None or not 0 <= weight < float(1 << 53):
            raise RoundError(f"--weight {self.model.weight!r}: the program's output has {'no such number' if weight is None else weight}. Nothing of the round was pushed")
        return weight

    def _show(self, clock: int, output: str) -> None:
        if self.model.metric:
            found = reading_of(output, self.model.metric)
            print(f"round {clock}: {'no such number in the output' if found is None else format(found, 'g')}", flush=True)

    def leave(self) -> None:
        """Leave the shared model of the last whole round in this worker's files; the launcher takes it from there."""
        if self.state is not None:
            content, values, own = self.state
            data = write(content, np.where(own, content.numbers, values))
            self.files.give(data)
            self.files.leave(data)
        self.files.clear()

    def _note(self, text: str) -> None:
        print(f"plugml: {text}", file=sys.stderr, flush=True)


class _SignalledError(Exception):
    def __init__(self, signum: int) -> None:
        self.signum = signum


class _FailedError(RoundError):
    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.exit_code = status


class _NotStartedError(RoundError):
    def __init__(self, command: str, error: OSError) -> None:
        super().__init__(f"{command} cannot be started: {error.strerror}")
        self.exit_code = 127 if isinstance(error, FileNotFoundError) else 126


def _with_parent(parent: int) -> Any:
    """Between fork and exec: the program dies with this process."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl

    def die_with_parent() -> None:
        prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)

    return die_with_parent


def _raise(signum: int, _frame: object) -> None:
    """The run ends: the program, which was told too, is not waited for."""
    for other in (signal.SIGTERM, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    raise _SignalledError(signum)


def _end_like(signum: int) -> None:
    """End by the signal that ended the program."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own
    if signum not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})
    os.kill(os.getpid(), signum)
    signal.pause()


def main(arguments: Sequence[str]) -> int:
    """`TOLD -- COMMAND`, as `between` writes it."""
    told, argv = Round.of(arguments[0]), list(arguments[2:])
    rounds = Rounds(told, argv, os.environ)
    try:
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, _raise)
        plug = attach()
        rounds.run(plug, int(os.environ.get("PLUGML_GEN", "1")) > 1)
        plug.bye()
    except _SignalledError as error:
        rounds.leave()
        _end_like(error.signum)
    except (PlugmlError, ChannelError) as error:
        print(f"plugml: {error}", file=sys.stderr, flush=True)
        return int(getattr(error, "exit_code", 1))
    except OSError as error:
        print(f"plugml: {error.filename or told.model.file}: {error.strerror}; nothing of the round was pushed", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
