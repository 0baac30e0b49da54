"""One sabotage: a small change of one method, and the weather that shows it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from .cluster import Cluster
from .weather import Plan
from .world import World


class Mutant(NamedTuple):
    """`sabotage(original)` gives the method that takes the place of `owner.name`."""

    title: str
    owner: Any
    name: str
    sabotage: Callable[[Callable[..., Any]], Callable[..., Any]]
    bias: Callable[[World, Plan], None] = lambda world, plan: None
    cluster: Callable[[World, Plan], Any] = Cluster  # what runs the plan
    story: Callable[[], None] | None = None  # instead of seeds: what happens message by message; it raises AssertionError


@contextmanager
def installed(mutant: Mutant) -> Iterator[None]:
    """The mutant is in force within the block.  Handler tables name methods themselves, so they are changed too."""
    original = getattr(mutant.owner, mutant.name)
    changed = mutant.sabotage(original)
    tables = [value for value in vars(_module(mutant.owner)).values() if isinstance(value, dict)]
    entries = [(table, key) for table in tables for key, value in table.items() if value is original]
    setattr(mutant.owner, mutant.name, changed)
    for table, key in entries:
        table[key] = changed
    try:
        yield
    finally:
        setattr(mutant.owner, mutant.name, original)
        for table, key in entries:
            table[key] = original


def _module(owner: Any) -> Any:
    return sys.modules[owner.__module__] if isinstance(owner, type) else owner
