"""The channel root: where it lies, whether it may be used, who is its agent, and what is swept out of it.

    <root>/                       0700, ours, tmpfs
      agent.sock  agent.lock  agent.stat  ipc/
      <job>.<worker>.<gen>/       a channel; .tmp-* while it is made, .dead-* once it has been given up

Each refusal is a `RootError` that says what is wrong and what to do.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..core.errors import RootError
from . import semaphore

IN_MEMORY = ("tmpfs", "ramfs")
SOCKET_PATH_MAX = 107  # sun_path without its closing NUL
SOCKET_NAME_MAX = 11  # "/agent.sock"; the sockets in ipc/ are not longer
FILES_FEW = 64  # more than a channel's
SYSTEM_UID_MAX = 999  # logind leaves system users' files alone
CLUSTER_NAME_MAX = 40

_SEM_LINE = re.compile(rb"^sem=(/plugml-[0-9a-f]{32})$", re.MULTILINE)
_CHANNEL = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,62})\.([0-9]{1,10})\.([0-9]{1,19})\Z")


class Swept(NamedTuple):
    """What a sweep found: channels to adopt, and what it removed with the reason."""

    channels: tuple[str, ...]
    removed: tuple[tuple[str, str], ...]


def boot_id() -> str:
    """This boot of the host, 32 hex digits."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")


def default_root(cluster: str, environ: Mapping[str, str]) -> Path:
    """`$PLUGML_ROOT`, else `/run/plugml/<uid>/<cluster>` where /run/plugml is in memory and ours to write, else /dev/shm."""
    if environ.get("PLUGML_ROOT"):
        return Path(environ["PLUGML_ROOT"])
    uid = os.getuid()
    base = Path("/run/plugml")
    mine = base / str(uid)
    if base.is_dir() and file_system(base) in IN_MEMORY and os.access(mine if mine.is_dir() else base, os.W_OK | os.X_OK):
        return mine / cluster
    return Path(f"/dev/shm/plugml-{uid}") / cluster


def prepare_root(root: Path, *, allow_disk: bool = False) -> list[str]:
    """Make the root if need be and check it; returns sentences of warning.  Raises `RootError`."""
    _check_name(root)
    warning = _check_parents(root)
    if not root.parent.is_dir():
        if root.parent.parent.is_dir() and not allow_disk:
            _check_in_memory(root, root.parent.parent)  # before anything is made
        _make_private(root.parent)
    _make_private(root)
    check_root(root, allow_disk=allow_disk)
    return [text for text in (warning, _remove_ipc_warning(root)) if text]


def check_place(root: Path, *, allow_disk: bool = False) -> None:
    """Refuse what `prepare_root` would refuse, as far as that is seen without making anything."""
    _check_name(root)
    _check_parents(root)
    if os.path.lexists(root):
        check_root(root, allow_disk=allow_disk)
        return
    there = root.parent if root.parent.exists() else root.parent.parent
    if not there.is_dir():
        raise _no_parent(there)
    if not os.access(there, os.W_OK | os.X_OK):
        raise RootError(f"the channel root {root} cannot be made: {there} may not be written; set PLUGML_ROOT to a place that you may write")
    if not allow_disk:
        _check_in_memory(root, there)


def _check_name(root: Path) -> None:
    if not root.is_absolute():
        raise RootError(f"the channel root {root} is not an absolute path; set PLUGML_ROOT to one")
    longest = SOCKET_PATH_MAX - SOCKET_NAME_MAX
    if len(os.fsencode(root)) > longest:
        raise RootError(f"the channel root {root} is longer than {longest} bytes, so no socket fits into it; choose a shorter PLUGML_ROOT")


def _no_parent(parent: Path) -> RootError:
    return RootError(f"the channel root's parent {parent} does not exist; make it or set PLUGML_ROOT to another place")


def check_root(root: Path, *, allow_disk: bool = False) -> None:
    """Refuse a root that is missing, a link, somebody else's, open to others, or not in memory."""
    try:
        found = os.lstat(root)
    except OSError as error:
        raise RootError(f"the channel root {root} cannot be used: {error.strerror}; start an agent there first") from error
    if not stat.S_ISDIR(found.st_mode):
        raise RootError(f"the channel root {root} is no directory; remove it or set PLUGML_ROOT to another place")
    if found.st_uid != os.getuid():
        raise RootError(f"the channel root {root} belongs to {_user(found.st_uid)}, not to you; set PLUGML_ROOT to a directory of your own")
    if found.st_mode & 0o077:
        raise RootError(f"the channel root {root} has mode {found.st_mode & 0o777:04o}, others could reach it; run: chmod 700 {root}")
    if not allow_disk:
        _check_in_memory(root, root)


def _check_in_memory(root: Path, existing: Path) -> None:
    kind = file_system(existing)
    if kind not in IN_MEMORY:
        raise RootError(
            f"the channel root {root} lies on {kind or 'an unknown file system'}, not in memory; set PLUGML_ROOT to a "
            "directory on tmpfs such as one under /dev/shm, or say --allow-disk (slow)"
        )


def _check_parents(root: Path) -> str:
    """Refuse, or warn of, a place where somebody else could put a directory of his own in the stead of the root, or of one above it."""
    warning, trusted = "", _trusted_owners()
    for above in dict.fromkeys((*root.parents, *root.resolve().parents)):
        try:
            found = os.stat(above)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise RootError(f"the channel root {root} cannot be reached: {error.strerror}; set PLUGML_ROOT to a place that you may write") from error
        if found.st_uid not in trusted:
            raise RootError(
                f"{above}, where the channel root {root.name} is to lie, belongs to {_user(found.st_uid)}, who could exchange it; "
                "set PLUGML_ROOT to a directory of your own"
            )
        if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX and not warning:
            warning = f"{above}, where the channel root {root.name} lies, may be written by others, who could exchange it: chmod go-w {above}"
    return warning


def _trusted_owners() -> set[int]:
    """Root and we; in a user namespace also whoever stands there for all users without a number: root's directories look like that."""
    trusted = {0, os.getuid()}
    try:
        if Path("/proc/self/uid_map").read_text().split()[2:3] != ["4294967295"]:
            trusted.add(int(Path("/proc/sys/kernel/overflowuid").read_text()))
    except (OSError, ValueError):
        pass  # no namespaces here
    return trusted


def _make_private(directory: Path) -> None:
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        raise _no_parent(directory.parent) from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _full(directory, 4096) from error
        raise RootError(f"the channel root {directory} cannot be made: {error.strerror}; set PLUGML_ROOT to a place that you may write") from error
    os.chmod(directory, 0o700)  # whatever the umask


def file_system(path: Path) -> str:
    """Type of the file system that holds `path` ("tmpfs", "ext4", ...), "" where the kernel does not tell."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        left, _dash, right = line.partition(" - ")
        if left.split()[2] == wanted and right:
            return right.split()[0]
    return ""


def need_space(root: Path, nbytes: int) -> None:
    """Refuse early what cannot fit.  (`posix_fallocate` is the proof; this makes the better sentence.)"""
    state = os.statvfs(root)
    if state.f_blocks and state.f_bavail * state.f_frsize < nbytes:
        raise _full(root, nbytes)


def full_error(root: Path, nbytes: int) -> RootError:
    """The error for ENOSPC while making files of `nbytes` together."""
    return _full(root, nbytes)


def _full(root: Path, nbytes: int) -> RootError:
    place = root if root.is_dir() else root.parent
    state = os.statvfs(place)
    available, larger = state.f_bavail * state.f_frsize, "size"
    found = f"{nbytes} bytes needed, {available} available"
    if nbytes <= available and state.f_files and state.f_favail < FILES_FEW:  # it is the files that are too many
        larger = "nr_inodes"
        found = f"it has {state.f_files} inodes and {state.f_favail} are free, for a directory and some ten files"
    return RootError(
        f"the channel root {place} is full: {found}; remove what lies there, make the file system larger "
        f"(mount -o remount,{larger}=...), or set PLUGML_ROOT to a larger one"
    )


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _remove_ipc_warning(root: Path) -> str:
    """logind removes everything of a user under /dev/shm at the last logout, unless told not to."""
    uid = os.getuid()
    if not str(root).startswith("/dev/shm/") or uid <= SYSTEM_UID_MAX or not Path("/run/systemd/seats").is_dir():
        return ""
    for config in (Path("/etc/systemd/logind.conf"), *sorted(Path("/etc/systemd/logind.conf.d").glob("*.conf"))):
        try:
            text = config.read_text(errors="replace")
        except OSError:
            continue
        if re.search(r"^\s*RemoveIPC\s*=\s*(no|false|0|off)\s*$", text, re.MULTILINE | re.IGNORECASE):
            return ""
    return (
        f"systemd-logind may delete {root} when you log out (RemoveIPC): set RemoveIPC=no in logind.conf, run "
        f"'loginctl enable-linger', or mount a tmpfs on /run/plugml"
    )


def lock_agent(root: Path) -> int:
    """Become the root's one agent: the returned descriptor holds `agent.lock` until it is closed.  Raises `RootError`."""
    path = root / "agent.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        raise RootError(
            f"another agent (process {holder or 'unknown'}) serves the channel root {root}; use it, stop it, or set PLUGML_ROOT"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def is_kept(root_fd: int, name: str) -> bool:
    """Whether somebody holds the channel's `keeper` locked: its launcher is alive."""
    try:
        fd = os.open(f"{name}/keeper", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=root_fd)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def channel_parts(name: str) -> tuple[str, int, int] | None:
    """Job, worker and gen of a channel's directory name, None for any other name.

    >>> channel_parts("digits.v2.0.3"), channel_parts("agent.sock")
    (('digits.v2', 0, 3), None)
    """
    found = _CHANNEL.match(name)
    return (found[1], int(found[2]), int(found[3])) if found else None


def sweep(root: Path, this_boot: str) -> Swept:
    """Remove what nobody keeps any more; to be called by the holder of `agent.lock` only.

    A channel stays iff its keeper is locked and it is of this boot.  `.tmp-*` and `.dead-*` stay while their makers
    still hold them.
    """
    kept, removed = [], []
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        for name in sorted(os.listdir(root_fd)):
            hidden = name.startswith((".tmp-", ".dead-"))
            if not hidden and channel_parts(name) is None:
                continue
            reason = _why_remove(root_fd, name, this_boot)
            if reason:
                remove_channel(root_fd, name)
                removed.append((name, reason))
            elif not hidden:
                kept.append(name)
    finally:
        os.close(root_fd)
    return Swept(tuple(kept), tuple(removed))


def _why_remove(root_fd: int, name: str, this_boot: str) -> str:
    if not is_kept(root_fd, name):
        return "nobody keeps it: its launcher is gone"
    if name.startswith("."):
        return ""
    head = _info_head(root_fd, name)
    if head is None:
        return "it has no info file"
    return "" if f"\nboot_id={this_boot}\n".encode() in head else "it is of another boot of this host"


def _info_head(root_fd: int, name: str) -> bytes | None:
    """The start of a channel's info, with every line that is not a table's."""
    try:
        fd = os.open(f"{name}/info", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=root_fd)
    except OSError:
        return None
    try:
        return os.pread(fd, 4096, 0)
    except OSError:  # a directory of that name
        return None
    finally:
        os.close(fd)


def remove_channel(root_fd: int, name: str) -> None:
    """Remove a channel's directory, and the semaphore that its info names unless somebody keeps it.

    First all but info, then the semaphore, whose waiter finds nobody left to answer, then info: whenever we are killed, the
    next sweep finds what is left.
    """
    found = _SEM_LINE.search(_info_head(root_fd, name) or b"")
    if found:
        remove_tree(root_fd, name, spared="info")
        semaphore.remove(found[1].decode())
    remove_tree(root_fd, name)


def remove_tree(root_fd: int, name: str, spared: str = "") -> None:
    """Remove a channel's directory and its files, following no link and leaving the root never; all but `spared`, if that is said."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=root_fd)
    except FileNotFoundError:
        return
    except OSError:  # a link or a plain file of that name
        os.unlink(name, dir_fd=root_fd)
        return
    try:
        for entry in os.listdir(fd):
            if entry == spared:
                continue
            try:
                os.unlink(entry, dir_fd=fd)
            except IsADirectoryError:
                remove_tree(fd, entry)
            except FileNotFoundError:
                continue
    finally:
        os.close(fd)
    if spared:
        return
    try:
        os.rmdir(name, dir_fd=root_fd)
    except FileNotFoundError:
        pass
