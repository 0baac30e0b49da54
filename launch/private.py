"""Directories in which workers start apart: everything of the launch directory is there by a link.

What a program writes under a new name is its own; what it writes into a linked file or directory is everybody's.
"""

from __future__ import annotations

import os

from .plan import RunPlan


def link_all(plan: RunPlan, worker: int) -> None:
    """Make the directory, or bring its links up to date.  Raises `OSError`."""
    place = plan.start_of(worker)
    unlink_all(plan, worker)
    os.makedirs(place, exist_ok=True)
    for name in os.listdir(plan.directory):
        source = os.path.join(plan.directory, name)
        if not _holds(source, place) and not os.path.lexists(os.path.join(place, name)):
            os.symlink(source, os.path.join(place, name))


def unlink_all(plan: RunPlan, worker: int) -> None:
    """Remove the links, and the directory if the program has left nothing in it."""
    place = plan.start_of(worker)
    try:
        entries = list(os.scandir(place))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_symlink() and os.readlink(entry.path) == os.path.join(plan.directory, entry.name):
            os.unlink(entry.path)
    if not os.listdir(place):
        os.rmdir(place)


def _holds(directory: str, place: str) -> bool:
    """Is `place` below this directory?  A link to it would lead in circles."""
    return os.path.realpath(place).startswith(os.path.realpath(directory) + os.sep)
