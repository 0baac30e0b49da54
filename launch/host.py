"""What this host has and allows: CPUs, programs, descriptors, space.  Looks and refuses early; starts nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import socket
import stat
import sys
import termios
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.errors import PlugmlError, RootError, UsageError, WorldError
from ..core.table import TableSpec
from ..shm_protocol.create import bytes_of
from . import words
from .check import Room
from .data import DATA, SHARD
from .datafiles import source_bytes
from .export import room_bytes
from .plan import RunPlan

FDS_PER_WORKER = 12  # keeper, root, two FIFOs, two pipes, log, pidfd, and those that are open only while it starts
FDS_BASE = 96
SLACK_BYTES = 1 << 20


class NotFoundError(PlugmlError):
    """A program that cannot be started, as a shell would end: 127 not found, 126 not executable."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def host_name() -> str:
    return socket.gethostname() or "this host"


# -- programs ---------------------------------------------------------------------------------------------------------


def check_programs(plan: RunPlan, environ: Mapping[str, str]) -> None:
    """Refuse a command that surely cannot be started, before anything else is."""
    path = dict(plan.variables).get("PATH", environ.get("PATH", os.defpath))
    for command in dict.fromkeys(plan.arguments(worker)[0] for worker in plan.numbers):
        check_program(command, path, plan.directory)
    inputs = Counter(plan.stdin_of(worker) for worker in plan.numbers)
    later = plan.data.kind == SHARD and DATA in plan.stdin  # the slices are cut when all has been looked at
    for name, readers in inputs.items():
        if name and not later:
            check_stdin(name, plan.directory, readers)
    if plan.rules.command and "{" not in plan.rules.command[0]:
        check_program(plan.rules.command[0], environ.get("PATH", os.defpath), plan.directory, "evaluation")


def check_stdin(name: str, directory: str, readers: int) -> None:
    """Refuse what no program can read from its beginning to its end.  Opens nothing: that may wait for somebody."""
    path = os.path.join(directory, name)
    if not os.access(path, os.R_OK):
        raise UsageError(f"--stdin {name}: no such file that can be read")
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode) or stat.S_ISSOCK(mode):
        raise UsageError(f"--stdin {name}: {'a directory' if stat.S_ISDIR(mode) else 'a socket'}; programs read a file or a FIFO")
    if stat.S_ISFIFO(mode) and readers > 1:
        raise UsageError(
            f"--stdin {name}: a FIFO gives each byte to one reader only, and {readers} workers would share it: make one for each, "
            "with {worker} in its name, or write a file"
        )


def check_program(command: str, path: str, directory: str, what: str = "trainer") -> None:
    shown = f"{what} {words.command_line([command])}"
    if "/" not in command:
        if shutil.which(command, path=path) is None:
            here = " (there is one in this directory: write ./ in front)" if os.path.exists(os.path.join(directory, command)) else ""
            raise NotFoundError(f"{shown} was not found in PATH{here}", 127)
        return
    full = os.path.join(directory, command)
    try:
        found = os.stat(full)
    except OSError as error:
        raise NotFoundError(f"{shown} cannot be found: {error.strerror}; the path starts at {directory}", 127) from error
    if stat.S_ISDIR(found.st_mode):
        raise NotFoundError(f"{shown} is a directory", 126)
    if not os.access(full, os.X_OK):
        raise NotFoundError(f"{shown} is not executable: chmod +x it, or name its interpreter in front", 126)


def start_failure(command: Sequence[str], error: OSError) -> tuple[str, int]:
    """The sentence and the exit code for a program that the kernel refused to start."""
    shown = words.command_line(command)
    if isinstance(error, FileNotFoundError) and error.filename not in (None, command[0]):
        return f"{shown}: {words.command_line([str(error.filename)])} is not there", 127
    if isinstance(error, FileNotFoundError):
        return f"{shown}: not found (or the interpreter in its first line is not)", 127
    if error.errno == errno.ENOEXEC:
        return f"{shown}: no program; a script needs a first line like #!/bin/sh", 126
    return f"{shown}: {error.strerror}", 126


def stdin_note(fd: int) -> str:
    """A warning when somebody pipes or redirects something into us: our programs read nothing of it.  Reads nothing."""
    try:
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode):
            waits = found.st_size > os.lseek(fd, 0, os.SEEK_CUR)
        elif stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode):
            counted = fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0")
            waits = int.from_bytes(counted, sys.byteorder) > 0
        else:
            waits = False
    except OSError:
        return ""
    if not waits:
        return ""
    return "what is piped into plugml goes to nobody: programs that read standard input get it by --stdin FILE (with {worker} for a file each)"


# -- CPUs -------------------------------------------------------------------------------------------------------------


def allowed_cpus(groups: Path = Path("/sys/fs/cgroup"), mine: Path = Path("/proc/self/cgroup")) -> float:
    """CPUs that this process may use: the lower of affinity and control group quota."""
    cpus = float(len(os.sched_getaffinity(0)))
    quotas = []
    for line in _read(mine).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            quotas += [_quota_v2(place) for place in _upwards(groups, path)]
        elif "cpu" in controllers.split(","):
            for name in (controllers, "cpu"):
                quotas += [_quota_v1(place) for place in _upwards(groups / name, path)]
    return min([cpus, *(quota for quota in quotas if quota)])


def _upwards(top: Path, path: str) -> list[Path]:
    """The group and everything above it; in a container the path may not exist below its own mount."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return [top.joinpath(*parts[:length]) for length in range(len(parts), -1, -1)]


def _quota_v2(group: Path) -> float:
    quota, _, period = _read(group / "cpu.max").strip().partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else 0.0


def _quota_v1(group: Path) -> float:
    quota, period = _read(group / "cpu.cfs_quota_us").strip(), _read(group / "cpu.cfs_period_us").strip()
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else 0.0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def free_port() -> int:
    """A TCP port that nobody uses just now, for a group that the programs form among themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def process_state(pid: int) -> str:
    """The kernel's letter for what a process does (R S D T Z ...), "" when it is gone."""
    _, _, rest = _read(Path(f"/proc/{pid}/stat")).rpartition(")")
    return rest.split()[0] if rest.split() else ""


# -- descriptors and space --------------------------------------------------------------------------------------------


def raise_descriptor_limit(workers: int) -> None:
    """Lift the soft limit on open files as far as this run needs; refuse what the hard limit cannot hold."""
    needed = FDS_BASE + FDS_PER_WORKER * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UsageError(f"{workers} workers need {needed} open files, {hard} are allowed: raise `ulimit -n`, or use fewer workers")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def check_place(plan: RunPlan) -> None:
    """The agent writes the result, and is told where in a text."""
    try:
        plan.result.encode()
    except UnicodeEncodeError:
        shown = words.command_line([plan.result])
        raise UsageError(f"the result's place {shown} has a name that is no UTF-8: choose another place with --result DIR") from None


def room(plan: RunPlan, root: Path) -> Room:
    """What channels, result and servers need, and what is free where it goes."""
    channels = plan.workers * bytes_of(plan.info(0))
    result = room_bytes(plan.spec.tables, plan.formats) * (2 if plan.rules.keep_best else 1) + SLACK_BYTES
    result += source_bytes(plan.data, plan.directory)
    values = 0 if plan.cluster else sum(stored_bytes(table) for table in plan.spec.tables)
    return Room(str(root), channels, free_bytes(root), result, free_bytes(Path(plan.result)), values, 0 if plan.cluster else free_memory())


def stored_bytes(table: TableSpec) -> int:
    """Of a dense table's values and their optimizer's state, on all servers together; a sparse one begins with nothing."""
    return table.held_bytes if table.kind == "dense" else 0


def check_space(room: Room, plan: RunPlan) -> None:
    """Refuse before the start what cannot fit: in the channels' root, in memory, or at the end where the result goes."""
    if room.channels > room.root_free:
        raise RootError(
            f"the channels of {words.count(plan.workers, 'worker')} need {words.amount(room.channels)}, and {room.root} has "
            f"{words.amount(room.root_free)} free: use fewer workers, or set PLUGML_ROOT to a larger tmpfs"
        )
    if room.values and room.values + room.channels > room.memory_free:
        raise WorldError(
            f"servers need {words.amount(room.values)} for values and optimizers, channels {words.amount(room.channels)}, and this host has "
            f"{words.amount(room.memory_free)} of memory free: use smaller tables (large ones with few rows in use can be sparse), fewer workers, or another host"
        )
    dense = sum(stored_bytes(table) for table in plan.spec.tables)
    if 0 < plan.spec.memory_bytes < dense:
        raise UsageError(
            f"memory = {words.amount(plan.spec.memory_bytes)}, and the dense tables need {words.amount(dense)} for values and optimizers: raise it"
        )
    if room.result > room.result_free:
        raise UsageError(
            f"the result needs {words.amount(room.result)}, and {plan.result} has {words.amount(room.result_free)} free: "
            "choose another place with --result DIR"
        )


def free_memory(groups: Path = Path("/sys/fs/cgroup"), mine: Path = Path("/proc/self/cgroup"), info: Path = Path("/proc/meminfo")) -> int:
    """Bytes that new processes may use: what the host has available, or what the control groups leave, whichever is less."""
    lines = dict(line.split(":", 1) for line in _read(info).splitlines() if ":" in line)
    available = lines.get("MemAvailable", "").split()
    left = [int(available[0]) << 10] if available else []
    for line in _read(mine).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            left += [_memory_left(place, "memory.max", "memory.current", "") for place in _upwards(groups, path)]
        elif "memory" in controllers.split(","):
            words_v1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            left += [_memory_left(place, *words_v1) for place in _upwards(groups / "memory", path)]
    return min((number for number in left if number >= 0), default=1 << 62)


def _memory_left(group: Path, limit_name: str, used_name: str, prefix: str) -> int:
    """What a control group may still take, its cached files counted as free; -1 where there is no limit."""
    limit, used = (_read(group / name).strip() for name in (limit_name, used_name))
    if not (limit.isdecimal() and used.isdecimal()):
        return -1
    stat = dict(line.split(" ", 1) for line in _read(group / "memory.stat").splitlines() if " " in line)
    cached = sum(int(stat.get(f"{prefix}{name}_file", 0)) for name in ("active", "inactive"))
    return max(0, int(limit) - int(used) + cached)


def free_bytes(path: Path) -> int:
    """Free bytes where the path is, or would be."""
    while not os.path.exists(path) and path != path.parent:  # false, too, below a directory that we may not enter
        path = path.parent
    state = os.statvfs(path)
    if not state.f_blocks:  # a file system without a size, e.g. some tmpfs: only trying tells
        return 1 << 62
    return state.f_bavail * state.f_frsize


def check_init_files(plan: RunPlan) -> None:
    """A table's first value that comes from a file must be there and have the table's size."""
    for table in plan.spec.tables:
        if table.init != "file":
            continue
        path = str(table.init_settings["path"])
        try:
            size = os.stat(path).st_size
        except OSError as error:
            raise UsageError(f"table {table.name!r}: init file {path}: {error.strerror}") from error
        if size != table.nbytes:
            raise UsageError(f"table {table.name!r}: init file {path} has {size} bytes, the table {table.nbytes}")
