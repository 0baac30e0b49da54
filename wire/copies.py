"""Messages between the copies of one range: log entries, what each copy holds, and a copy's way to a new server.

A range has one primary and backups in sync with it; a learner is being filled.  See docs/internals.md, "Copies".
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Replicate(NamedTuple):
    """Primary to backup and learner: entry `version` of the log, and how far the log is committed.

    `origin` is the node that sent `entry` to the primary, `made` the epoch in which its place was given to it: the two
    numbers (version, made) never name two entries.  Version 0 = no entry, only news of `commit`.  `mark` is
    (version, digest of the primary at that version), (0, 0) = none: a copy that has another digest there is no copy.
    """

    job: int
    range: int
    epoch: int
    token: int
    version: int
    commit: int
    made: int
    origin: str
    mark: tuple[int, int]
    entry: Any


class Held(NamedTuple):
    """Backup or learner to primary: I hold every entry up to `last`, the same as yours.  Answers Replicate and Sync."""

    job: int
    range: int
    epoch: int
    token: int
    last: int


class Sync(NamedTuple):
    """The primary of a new epoch: my log ends with `last`, and is committed up to `commit`, as far as I know.

    `runs` lists (version, made) where entries behind `commit` begin that were made in one epoch.  Forget what you hold from
    the first one on that is another than mine, and what lies beyond `last`; then say what you hold.  What you lack follows.
    """

    job: int
    range: int
    epoch: int
    token: int
    last: int
    commit: int
    runs: tuple[tuple[int, int], ...]


class CopyAsk(NamedTuple):
    """Learner to primary: bytes from `cursor` on of the copy made at log position `version` (0 = make one)."""

    job: int
    range: int
    epoch: int
    token: int
    born: int
    version: int
    cursor: int


class CopyTold(NamedTuple):
    """Part of a copy: one RAW segment; `total` bytes in all, of which the first `head` are the table of contents."""

    job: int
    range: int
    epoch: int
    token: int
    born: int
    version: int
    cursor: int
    total: int
    head: int
    segments: tuple[Any, ...]
    payload: tuple[Any, ...]
