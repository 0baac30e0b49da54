"""The keys of a cluster: a directory with one file for each key pair, and the roster of all public keys.

    <directory>/roster.json     id of the key -> public key; no secret, but nobody else may write it
    <directory>/<id>.key        one pair (0600): s0.key belongs to server s0 alone, admin.key to who gives commands

Owns the files, their modes and what a node holds of them.  Refuses to know sockets, and which role may do what
(`wire.roles`).  A secret stands in its file and in the memory of the process that uses it, nowhere else.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import zmq

from ..core.errors import KeysError
from ..wire.roles import key_of_name, role_of_key

ROSTER = "roster.json"
VERSION = 1
KEY_CHARS = 40  # Z85 of 32 bytes
FILE_BYTES_MAX = 1 << 20
ZMQ_LEAST = (4, 3, 4)  # older ones have faults in the code that strangers reach


class Pair(NamedTuple):
    """A key pair in Z85.  Its text never shows the secret."""

    id: str
    public: str
    secret: str

    def __repr__(self) -> str:
        return f"Pair({self.id})"


def check_library(curve: bool, version: tuple[int, int, int] | None = None, has_curve: bool | None = None) -> None:
    """Raise `KeysError` where zmq is too old, or, with `curve`, cannot encrypt."""
    version = version or zmq.zmq_version_info()
    if version < ZMQ_LEAST:
        words = [".".join(map(str, numbers)) for numbers in (version, ZMQ_LEAST)]
        raise KeysError(f"the zmq library here is {words[0]}, plugml needs {words[1]} or later: install a newer pyzmq")
    if curve and not (zmq.has("curve") if has_curve is None else has_curve):
        raise KeysError("the zmq library here was built without CURVE: install pyzmq as a wheel, or libzmq with libsodium")


# -- making -----------------------------------------------------------------------------------------------------------


def make_keys(directory: Path, ids: Iterable[str], renew: Iterable[str] = (), revoke: Iterable[str] = ()) -> list[str]:
    """Make what is missing of the keys `ids`, and those of `renew` anew, and strike out those of `revoke`; gives the ids that were made.

    Several may be at this at once.  A key whose file is gone (it was moved to its host) stays what the roster says.
    """
    check_library(curve=True)
    anew, struck = set(renew), set(revoke)
    wanted = list(dict.fromkeys([*(id_ for id_ in ids if id_ not in struck), *renew]))
    for id_ in [*wanted, *struck]:
        if not role_of_key(id_):
            raise KeysError(f"{id_!r} names no key: use m0, s0, a0 ..., admin or admin-NAME")
    _make_directory(directory)
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        roster = read_roster(directory) if (directory / ROSTER).exists() else {}
        missing = [id_ for id_ in wanted if id_ in anew or id_ not in roster]
        for id_ in missing:
            public, secret = (word.decode() for word in zmq.curve_keypair())
            _write(directory / f"{id_}.key", {"version": VERSION, "id": id_, "public": public, "secret": secret}, 0o600)
            roster[id_] = public
        gone = [id_ for id_ in struck if roster.pop(id_, None)]
        if missing or gone:
            _write(directory / ROSTER, {"version": VERSION, "keys": roster}, 0o644)
        for id_ in gone:
            (directory / f"{id_}.key").unlink(missing_ok=True)
        return missing
    finally:
        os.close(lock)


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        ignore = directory / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")  # a secret that was committed once is out for good
    except OSError as error:
        raise KeysError(f"cannot make {directory}: {error.strerror}; give another --out") from error
    _check_directory(directory)


def _write(path: Path, document: Mapping[str, Any], mode: int) -> None:
    """The whole file or none; it never exists with more rights than `mode`."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.unlink(missing_ok=True)
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "w") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(descriptor)
        os.replace(scratch, path)
    except OSError as error:
        raise KeysError(f"cannot write {path}: {error.strerror}") from error


# -- reading ----------------------------------------------------------------------------------------------------------


def read_pair(directory: Path, id_: str) -> Pair:
    """One key pair, if its file is as private as it must be."""
    path = directory / f"{id_}.key"
    found = _read(path, 0o077, f"whoever can read it can be {id_}: chmod 600 {path}")
    pair = Pair(str(found.get("id")), str(found.get("public")), str(found.get("secret")))
    if pair.id != id_:
        raise KeysError(f"{path} holds the key of {pair.id!r}: each node has its own, copy {id_}.key from where `plugml keygen` made it")
    if zmq.curve_public(_z85(path, pair.secret)) != _z85(path, pair.public):
        raise KeysError(f"{path} is damaged: its two halves do not belong together; copy it again")
    return pair


def read_roster(directory: Path) -> dict[str, str]:
    """Public key of each id."""
    path = directory / ROSTER
    found = _read(path, 0o022, f"whoever can write it decides who is let in: chmod 644 {path}").get("keys")
    if not isinstance(found, dict):
        raise KeysError(f"{path} is no roster of keys: make one by `plugml keygen`")
    owners: dict[str, str] = {}
    for id_, public in found.items():
        if not role_of_key(id_):
            raise KeysError(f"{path} names a key {id_!r}: there are m0, s0, a0 ..., admin and admin-NAME")
        _z85(path, public)
        if owners.setdefault(public, id_) != id_:
            raise KeysError(f"{path} gives {id_} and {owners[public]} the same key: each needs its own")
    return dict(found)


def _read(path: Path, forbidden: int, advice: str) -> dict[str, Any]:
    _check_directory(path.parent)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise KeysError(f"{path} is not there: copy it from where `plugml keygen` made it, or make it") from None
    except OSError as error:
        raise KeysError(f"cannot read {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise KeysError(f"{path} is no regular file")
        if status.st_uid not in (os.getuid(), 0):
            raise KeysError(f"{path} belongs to another user (uid {status.st_uid})")
        if status.st_mode & forbidden:
            raise KeysError(f"{path} has mode {stat.S_IMODE(status.st_mode):04o}; {advice}")
        raw = file.read(FILE_BYTES_MAX)
    try:
        found = json.loads(raw)
        if not isinstance(found, dict) or found.get("version") != VERSION:
            raise ValueError(f"not of version {VERSION}")
    except (ValueError, RecursionError):
        raise KeysError(f"{path} cannot be read as a file of `plugml keygen`: copy or make it again") from None
    return found


def _check_directory(directory: Path) -> None:
    """Who may write the directory may put other files in the place of ours."""
    try:
        status = directory.stat()
    except OSError as error:
        raise KeysError(f"there are no keys in {directory}: {error.strerror}; make them by `plugml keygen --out {directory}`") from error
    if not stat.S_ISDIR(status.st_mode):
        raise KeysError(f"{directory} is no directory of keys")
    if status.st_uid not in (os.getuid(), 0):
        raise KeysError(f"{directory} belongs to another user (uid {status.st_uid})")
    if status.st_mode & 0o022:
        raise KeysError(f"{directory} can be written by others (mode {stat.S_IMODE(status.st_mode):04o}): chmod 700 {directory}")


def _z85(path: Path, text: object) -> bytes:
    """A key as zmq wants it."""
    try:
        if not isinstance(text, str) or len(text) != KEY_CHARS:
            raise ValueError
        word = text.encode("ascii")
        zmq.curve_public(word)  # refuses what is no Z85
        return word
    except (ValueError, zmq.ZMQError):
        raise KeysError(f"{path} holds something that is no key: copy or make it again") from None


# -- what a node holds ------------------------------------------------------------------------------------------------


class Keys:
    """A node's own pair and the roster, read again when its file has changed: keys come and go while it runs."""

    def __init__(self, directory: Path, id_: str) -> None:
        check_library(curve=True)
        self.directory = directory
        self.pair = read_pair(directory, id_)
        self.trouble = ""  # why the roster on disk is not the one in use
        self._public: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        self._stamp = self._look()  # before it is read: a change meanwhile is seen by the next look
        self._take(read_roster(directory))
        if self._public.get(id_) != self.pair.public:
            raise KeysError(f"{directory / ROSTER} gives {id_} another key than {id_}.key: copy both again from the same place")

    def __repr__(self) -> str:
        return f"Keys({self.directory}, {self.pair.id})"

    def public_of(self, node: str) -> str:
        """The key by which the node of this name must prove itself, "" if none is known."""
        return self._public.get(key_of_name(node), "")

    def owner_of(self, public: str) -> str:
        """Id of the key, "" if it is a stranger's."""
        return self._owners.get(public, "")

    def refresh(self) -> set[str]:
        """Read the roster again if its file has changed; gives the ids whose key is another now, or gone, or new.

        A roster that cannot be read changes nothing, but `trouble`.
        """
        stamp = self._look()
        if stamp == self._stamp:
            return set()
        self._stamp = stamp
        before = self._public
        try:
            self._take(read_roster(self.directory))
            self.trouble = ""
        except KeysError as error:
            self.trouble = str(error)
            return set()
        return {id_ for id_ in {*before, *self._public} if before.get(id_) != self._public.get(id_)}

    def _take(self, roster: dict[str, str]) -> None:
        self._public = roster
        self._owners = {public: id_ for id_, public in roster.items()}

    def _look(self) -> tuple[int, ...]:
        try:
            status = os.stat(self.directory / ROSTER)
        except OSError:
            return ()
        return status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode


class Trust(NamedTuple):
    """What a node's network may do over TCP.  Within the host, over ipc, it needs none of this.

    Without keys it neither listens nor calls, unless `insecure`, which its user must have said.  With `plain_data`
    whatever leads to a server is neither encrypted nor proven; what leads to a master always is.
    """

    keys: Keys | None = None
    insecure: bool = False
    plain_data: bool = False


NO_TCP = Trust()
