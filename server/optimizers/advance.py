"""One step of a block or of rows, chunk by chunk while the chunk is in cache, each result checked to be finite.

    pushes of one block  --Mix-->  one update  --Kernel.step-->  new values and state
    rows and what was pushed to them           --Kernel.step-->  new values and state

A dense step and a sparse one of the same numbers give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import CHUNK, Array, Kernel, Numbers, Scratch, Work
from .mix import Mix

Slots = Sequence[Array]

IDLE: Numbers = (0.0,)  # of an entry that is no step


def advance(
    kernel: Kernel, old: Array, mix: Mix, slots_old: Slots, out: Array, slots_out: Slots, step_number: int,
    scalars: Sequence[float], scratch: Scratch,
) -> bool:  # fmt: skip
    """`out`, `slots_out` = values and state after one step with the combined pushes; `step_number` counts from 1.

    False if a number is not finite: `out` and `slots_out` are void then.  `old` and `slots_old` are only read unless they
    are also written to.  An entry with the share 0 (nobody weighs anything) is no step: all stays, and it is not to be counted.
    """
    with np.errstate(all="ignore"):
        made = kernel.factors(scalars, np.array([step_number])) if kernel.counts else ()
        factors = tuple([scratch.work.type(factor[0]) for factor in made])
        numbers = _numbers(scalars, scratch)
        for start in range(0, old.size, CHUNK):
            stop = min(start + CHUNK, old.size)
            update = mix.chunk(start, stop, scratch)
            if update is None:
                return False
            if not _chunk(kernel, slice(start, stop), old, update, slots_old, out, slots_out, numbers, factors, scratch):
                return False
    return True


def advance_rows(
    kernel: Kernel, old: Array, update: Array, slots_old: Slots, out: Array, slots_out: Slots, counts: Array | None,
    scalars: Sequence[float], scratch: Scratch,
) -> bool:  # fmt: skip
    """The same for rows: arrays of shape (k, width), contiguous; `counts` is the number of this step for each row, from 1.

    `counts` may be None for a kernel that does not count.
    """
    rows, width = old.shape
    flat = [_flat(array) for array in (old, update, out, *slots_old, *slots_out)]
    old, update, out = flat[:3]
    slots_old, slots_out = flat[3 : 3 + kernel.slots], flat[3 + kernel.slots :]
    made: tuple[Array, ...] = ()
    together = max(1, CHUNK // width)  # rows of a chunk; a row may be longer than one
    with np.errstate(all="ignore"):
        numbers = _numbers(scalars, scratch)
        if kernel.counts:
            assert counts is not None and counts.shape == (rows,)
            made = tuple([factor.astype(scratch.work) for factor in kernel.factors(scalars, counts)])
        for row in range(0, rows, together):
            last = min(row + together, rows)
            factors = tuple([_by_element(factor[row:last], width) for factor in made])
            for start in range(row * width, last * width, CHUNK):
                stop = min(start + CHUNK, last * width)
                new = update[start:stop]
                if new.dtype != scratch.work:
                    new = scratch.sum[: stop - start]
                    np.copyto(new, update[start:stop])
                if not _chunk(kernel, slice(start, stop), old, new, slots_old, out, slots_out, numbers, factors, scratch):
                    return False
    return True


def _chunk(
    kernel: Kernel, here: slice, old: Array, update: Array, slots_old: Slots, out: Array, slots_out: Slots,
    scalars: Numbers, factors: Numbers, scratch: Scratch,
) -> bool:  # fmt: skip
    """One chunk of a step, and whether every number of its result is finite."""
    n = here.stop - here.start
    values, result = old[here], out[here]
    state, new_state = tuple([slot[here] for slot in slots_old]), tuple([slot[here] for slot in slots_out])
    flags = scratch.flags[:n]
    if scalars is IDLE:
        return _stay(values, update, state, result, new_state, flags)

    narrow = values.dtype != scratch.work
    if narrow:
        np.copyto(scratch.before[:n], values)
    work = Work(scratch.before[:n], update, state, scratch.after[:n], new_state) if narrow else Work(values, update, state, result, new_state)
    if not kernel.step(work, scalars, factors, scratch):
        return False
    if narrow:
        np.copyto(result, work.out, casting="same_kind")  # one that leaves the range becomes infinite
    if result.dtype.kind != "f":
        return True
    # A hidden slot is a sum of squares: its largest number tells of all.
    hidden = all([np.maximum.reduce(new_state[slot]) < np.inf for slot in kernel.hidden])
    return hidden and bool(np.isfinite(result, out=flags).all())


def _by_element(factor: Array, width: int) -> Any:
    """The factors of some rows, for each element of them."""
    if width == 1:
        return factor
    return np.repeat(factor, width) if len(factor) > 1 else factor[0]


def _stay(values: Array, update: Array, state: Slots, result: Array, new_state: Slots, flags: Array) -> bool:
    """No step; what is no number is refused all the same."""
    np.copyto(result, values)
    for before, after in zip(state, new_state):
        np.copyto(after, before)
    return update.dtype.kind != "f" or bool(np.isfinite(update, out=flags).all())


def _numbers(scalars: Sequence[float], scratch: Scratch) -> Numbers:
    """Scalars rounded to the working kind.  Whole numbers have none but a share of 1, or of 0."""
    if scalars[0] == 0.0:
        return IDLE
    return tuple([scratch.work.type(scalar) for scalar in scalars])


def _flat(array: Array) -> Array:
    """The same memory as one row."""
    assert array.flags.c_contiguous, "rows lie one after the other"
    return array.reshape(-1)
