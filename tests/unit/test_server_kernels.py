"""Kernels against plain numpy and against a C loop; combining; integers that do not fit; first values."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.keys import GOLDEN, mix, name_hash
from plugml.core.table import OPTIMIZERS, TableSpec
from plugml.server.firsts import fill
from plugml.server.memory import Memory, aligned
from plugml.server.optimizers import CHUNK, KERNELS, Mix, Scratch, advance
from tests.scenario.kit import table

FLOATS = ("f32", "f64")
SIZES = (1, 7, 256, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 17)


def numbers(dtype: str, count: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if dtype == "i64":
        return rng.integers(-1000, 1000, count)
    scale = 10.0 ** rng.integers(-6, 6, count)
    return (rng.standard_normal(count) * scale).astype(np.dtype({"f32": "<f4", "f64": "<f8"}[dtype]))


def step(spec: TableSpec, old: Any, arrays: list[Any], weights: list[float] | None = None, total: float = 0.0, scale: float = 1.0) -> Any:
    kernel = KERNELS[spec.optimizer]
    mixed = Mix.sum_of(arrays) if weights is None else Mix.mean_of(arrays, weights, total or sum(weights))
    assert mixed is not None
    out = np.full_like(old, 7)
    before = old.copy()
    slots = tuple(np.zeros_like(old) for _ in range(kernel.slots))
    good = advance(kernel, old, mixed, slots, out, slots, 1, kernel.scalars(spec, scale, 1.0), Scratch(old.dtype))
    np.testing.assert_array_equal(old, before)  # only read
    return out if good else None


def test_every_optimizer_of_a_table_has_a_kernel() -> None:
    assert set(KERNELS) == set(OPTIMIZERS)
    assert all(kernel.name == name and kernel.slots in (0, 1, 2) for name, kernel in KERNELS.items())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", SIZES)
def test_sgd_is_plain_numpy(dtype: str, count: int) -> None:
    spec = table(count=count, dtype=dtype, lr=0.3)
    w, g = numbers(dtype, count, 1), numbers(dtype, count, 2)
    np.testing.assert_array_equal(step(spec, w, [g]), w - w.dtype.type(0.3) * g)


@pytest.mark.parametrize("dtype", (*FLOATS, "i64"))
@pytest.mark.parametrize("count", SIZES)
def test_add_and_assign_are_plain_numpy(dtype: str, count: int) -> None:
    w, g = numbers(dtype, count, 3), numbers(dtype, count, 4)
    np.testing.assert_array_equal(step(table(count=count, dtype=dtype, optimizer="add"), w, [g]), w + g)
    np.testing.assert_array_equal(step(table(count=count, dtype=dtype, optimizer="assign"), w, [g]), g)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_a_kernel_may_write_into_what_it_reads(name: str) -> None:
    spec = table(count=CHUNK + 5, dtype="f64", optimizer=name)
    w, g = numbers("f64", CHUNK + 5, 5), numbers("f64", CHUNK + 5, 6)
    apart = step(spec, w, [g], scale=0.5)
    kernel = KERNELS[name]
    slots = tuple(np.zeros_like(w) for _ in range(kernel.slots))
    assert advance(kernel, w, Mix.sum_of([g]), slots, w, slots, 1, kernel.scalars(spec, 0.5, 1.0), Scratch(w.dtype))
    np.testing.assert_array_equal(w, apart)


def test_a_scaled_step_goes_a_share_of_the_way() -> None:
    w, g = np.array([1.0, 2.0]), np.array([4.0, -8.0])
    np.testing.assert_array_equal(step(table(dtype="f64", lr=0.5), w, [g], scale=0.25), w - 0.125 * g)
    np.testing.assert_array_equal(step(table(dtype="f64", optimizer="add"), w, [g], scale=0.25), w + 0.25 * g)
    np.testing.assert_array_equal(step(table(dtype="f64", optimizer="assign"), w, [g], scale=0.25), w + 0.25 * (g - w))


def c_loop(tmp_path: Path, ctype: str) -> Callable[[Any, Any, float], None]:
    """`w -= lr * g` by the compiler that users have."""
    source = f"void step({ctype} *w, const {ctype} *g, {ctype} lr, long n) {{ for (long i = 0; i < n; i++) w[i] -= lr * g[i]; }}\n"
    (tmp_path / "step.c").write_text(source)
    subprocess.run(
        ["gcc", "-O2", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", "-o", "step.so", "step.c"], cwd=tmp_path, check=True
    )
    function = ctypes.CDLL(str(tmp_path / "step.so")).step
    number = ctypes.c_float if ctype == "float" else ctypes.c_double
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, number, ctypes.c_long]
    function.restype = None
    return lambda w, g, lr: function(w.ctypes.data, g.ctypes.data, lr, len(w))


@pytest.mark.parametrize("dtype", FLOATS)
def test_sgd_gives_the_bits_of_a_c_loop(dtype: str, tmp_path: Path, require: Callable[[str], None]) -> None:
    require("gcc")
    loop = c_loop(tmp_path, "float" if dtype == "f32" else "double")
    spec = table(count=CHUNK + 1000, dtype=dtype, lr=0.1)
    w, g = numbers(dtype, CHUNK + 1000, 7), numbers(dtype, CHUNK + 1000, 8)
    w[:8] = np.finfo(w.dtype).tiny  # denormal results count too
    g[:8] = np.finfo(w.dtype).tiny * 3
    for _ in range(20):
        ours = step(spec, w, [g])
        loop(w, g, 0.1)
        assert ours.tobytes() == w.tobytes()
        g = np.roll(g, 1)


# -- combining


@given(st.integers(1, 5), st.booleans(), st.sampled_from(FLOATS), st.data())
@settings(max_examples=60, deadline=None)
def test_a_mean_is_the_weighted_mean(count: int, equal: bool, dtype: str, data: st.DataObject) -> None:
    weights = [3.0] * count if equal else data.draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, 450.0]), min_size=count, max_size=count))
    arrays = [numbers(dtype, 300, i).clip(-100, 100) for i in range(count)]
    total = sum(weights)
    mixed = Mix.mean_of(arrays, weights, total)
    if total == 0:
        assert mixed is None
        return
    assert mixed is not None
    found = mixed.chunk(0, 300, Scratch(arrays[0].dtype))
    want = sum(w * a.astype(np.float64) for w, a in zip(weights, arrays)) / total
    np.testing.assert_allclose(found, want, rtol=1e-5 if dtype == "f32" else 1e-12, atol=1e-4 if dtype == "f32" else 1e-11)


def test_one_push_is_used_bit_for_bit() -> None:
    g = numbers("f32", 100, 1)
    mixed = Mix.mean_of([g], [449.0], 449.0)
    assert mixed is not None
    assert mixed.chunk(0, 100, Scratch(g.dtype)).base is g  # not even copied


def test_equal_weights_keep_whole_numbers_whole() -> None:
    """Three workers of 450 examples push 1, 2 and 3: the mean is exactly 2."""
    arrays = [np.full(9, value, np.float32) for value in (1, 2, 3)]
    mixed = Mix.mean_of(arrays, [450.0] * 3, 1350.0)
    assert mixed is not None and (mixed.chunk(0, 9, Scratch(arrays[0].dtype)) == 2).all()


def test_who_pushed_nothing_counts_in_the_mean() -> None:
    mixed = Mix.mean_of([np.full(3, 8.0)], [1.0], 4.0)
    assert mixed is not None and (mixed.chunk(0, 3, Scratch(np.dtype("f8"))) == 2).all()


def test_pushes_are_summed_in_the_given_order() -> None:
    """29 % of sums of four float32 depend on the order: ours is from left to right."""
    arrays = [numbers("f32", 1000, i) for i in range(4)]
    found = Mix.sum_of(arrays).chunk(0, 1000, Scratch(arrays[0].dtype))
    np.testing.assert_array_equal(found, ((arrays[0] + arrays[1]) + arrays[2]) + arrays[3])


# -- what does not fit


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ("sgd", "add"))
def test_an_overflow_is_seen_wherever_it_is(dtype: str, name: str) -> None:
    count = 2 * CHUNK + 3
    for at in (0, CHUNK, count - 1):
        w, g = numbers(dtype, count, 1), numbers(dtype, count, 2)
        w[at] = np.finfo(w.dtype).max
        g[at] = -np.finfo(w.dtype).max if name == "sgd" else np.finfo(w.dtype).max
        assert step(table(count=count, dtype=dtype, optimizer=name, **({"lr": 1.0} if name == "sgd" else {})), w, [g]) is None


@pytest.mark.parametrize("bad", (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize("name", sorted(KERNELS))
def test_a_push_that_is_no_number_never_gets_in(bad: float, name: str) -> None:
    w, g = np.zeros(100), np.zeros(100)
    g[50] = bad
    assert step(table(count=100, dtype="f64", optimizer=name), w, [g]) is None


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=6))
@settings(max_examples=200, deadline=None)
def test_an_integer_that_does_not_fit_is_seen(terms: list[int]) -> None:
    """A sum is refused iff one of its partial sums, from left to right, leaves 64 bits."""
    spec = table(count=1, dtype="i64", optimizer="add")
    arrays = [np.array([term], np.int64) for term in terms]
    partial, fits = terms[1], True
    for term in [*terms[2:], terms[0]]:  # the pushes first, then the old value
        partial += term
        fits = fits and -(2**63) <= partial < 2**63
    found = step(spec, arrays[0], arrays[1:])
    assert (found is not None) == fits
    if fits:
        assert found[0] == sum(terms)


# -- first values and memory


@pytest.mark.parametrize("init", ("uniform", "normal"))
@pytest.mark.parametrize("dtype", FLOATS)
def test_first_values_do_not_depend_on_the_cut(init: str, dtype: str) -> None:
    settings_ = {"low": -1.0, "high": 3.0} if init == "uniform" else {"scale": 2.0}
    spec = table(count=200_000, dtype=dtype, init=init, init_settings=settings_)
    whole = np.empty(200_000, spec.numpy_dtype)
    fill(spec, 42, 0, 200_000, whole)
    pieces = np.empty_like(whole)
    for start, stop in ((0, 1), (1, 65_537), (65_537, 131_072), (131_072, 200_000)):
        fill(spec, 42, start, stop, pieces[start:stop])
    np.testing.assert_array_equal(whole, pieces)
    other = np.empty_like(whole)
    fill(spec, 43, 0, 200_000, other)
    assert not np.array_equal(whole, other)
    if init == "uniform":
        assert whole.min() >= -1 and whole.max() <= 3
        assert abs(float(whole.mean()) - 1.0) < 0.02
    else:
        assert abs(float(whole.mean())) < 0.02 and abs(float(whole.std()) - 2.0) < 0.02
        assert 6.0 < float(np.abs(whole).max()) <= 12.0


def test_first_values_are_the_published_function() -> None:
    """Element by element in plain Python, so that another language can repeat it."""
    spec = table("w", 50, "f64", init="uniform", init_settings={"low": 0.0, "high": 1.0})
    out = np.empty(50)
    fill(spec, 7, 0, 50, out)
    key = mix(7 ^ name_hash("w"))
    assert [float(x) for x in out] == [(mix((key + i * GOLDEN) & (2**64 - 1)) >> 11) * 2.0**-53 for i in range(50)]

    spec = table("w", 50, "f64", init="normal", init_settings={"scale": 1.0})
    fill(spec, 7, 0, 50, out)
    for i in range(50):
        draws = [mix((key + (6 * i + k) * GOLDEN) & (2**64 - 1)) for k in range(6)]
        total = sum((z >> 32) + (z & 0xFFFFFFFF) for z in draws)
        assert float(out[i]) == (total - 6 * (2**32 - 1)) / 2**32


@pytest.mark.parametrize("init", ("zeros", "program", "file"))
def test_other_tables_start_at_zero(init: str) -> None:
    out = np.full(10, 9.0)
    fill(table(count=10, dtype="f64", init=init), 1, 0, 10, out)
    assert not out.any()


def test_blocks_lie_on_cache_lines_and_are_used_again() -> None:
    memory = Memory()
    first = memory.take(np.dtype("<f4"), 1001)
    assert first.ctypes.data % 64 == 0 and first.size == 1001
    memory.give(first)
    assert memory.take(np.dtype("<f8"), 1001) is not first
    assert memory.take(np.dtype("<f4"), 1001) is first


def test_a_lent_block_is_left_alone_until_it_is_back() -> None:
    lent: list[Any] = []
    memory = Memory(lambda array: any(array is other for other in lent))
    block = aligned(np.dtype("<f8"), 10)
    lent.append(block)
    memory.give(block)
    assert memory.take(np.dtype("<f8"), 10) is not block
    lent.clear()
    assert memory.take(np.dtype("<f8"), 10) is block


def test_a_block_shown_in_this_event_is_left_alone_until_the_next() -> None:
    memory = Memory()
    block = memory.show(memory.take(np.dtype("<f8"), 10))
    memory.give(block)
    assert memory.take(np.dtype("<f8"), 10) is not block
    memory.begin_event()
    assert memory.take(np.dtype("<f8"), 10) is block
