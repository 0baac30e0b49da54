"""Optimizers with state against the papers' formulas, a C loop and literal numbers; rows against blocks; half precision."""

from __future__ import annotations

import ctypes
import math
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.errors import UsageError
from plugml.core.table import TableSpec
from plugml.server.optimizers import CHUNK, KERNELS, Mix, Scratch, advance, advance_rows, working
from plugml.server.optimizers.powers import STEPS_MAX, powers

KINDS = {"f16": "<f2", "f32": "<f4", "f64": "<f8"}
STATEFUL = ("momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw")
FLOAT_KERNELS = (*STATEFUL, "sgd", "add", "assign")


def spec_of(name: str, storage: str = "f64", **chosen: float) -> TableSpec:
    dtype = "f64" if storage == "f64" else "f32"
    return TableSpec("w", (4,), dtype=dtype, storage=storage, optimizer=name, settings=chosen)


class Held(NamedTuple):
    """Values and state, as a server would keep them."""

    values: Any
    slots: tuple[Any, ...]


def fresh(name: str, values: Any) -> Held:
    kind = working(values.dtype)
    return Held(values, tuple(np.zeros(values.shape, kind) for _ in range(KERNELS[name].slots)))


def dense(spec: TableSpec, held: Held, g: Any, step: int, share: float = 1.0, lr_factor: float = 1.0) -> Held | None:
    kernel = KERNELS[spec.optimizer]
    before = [array.copy() for array in (held.values, *held.slots, g)]
    out, slots = np.full_like(held.values, 7), tuple(np.full_like(slot, 7) for slot in held.slots)
    scalars = kernel.scalars(spec, share, lr_factor)
    good = advance(kernel, held.values, Mix.sum_of([g]), held.slots, out, slots, step, scalars, Scratch(held.values.dtype))
    for array, copy in zip((held.values, *held.slots, g), before):
        np.testing.assert_array_equal(array, copy)  # only read
    return Held(out, slots) if good else None


def rows(spec: TableSpec, held: Held, g: Any, counts: Any, share: float = 1.0) -> Held | None:
    kernel = KERNELS[spec.optimizer]
    out, slots = np.full_like(held.values, 7), tuple(np.full_like(slot, 7) for slot in held.slots)
    scalars = kernel.scalars(spec, share, 1.0)
    good = advance_rows(kernel, held.values, g, held.slots, out, slots, counts, scalars, Scratch(held.values.dtype))
    return Held(out, slots) if good else None


def numbers(kind: str, shape: Any, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(KINDS[kind])


# -- the papers' formulas, in float64, one step after the other


def by_the_book(name: str, w: Any, pushes: list[Any], lr: float, **p: float) -> Any:
    w = w.astype(np.float64)
    first, second = np.zeros_like(w), np.zeros_like(w)
    for t, push in enumerate(pushes, 1):
        g = push.astype(np.float64)
        if name == "momentum":
            first = p["beta"] * first + g
            w = w - lr * first
        elif name == "nesterov":
            first = p["beta"] * first + g
            w = w - lr * (g + p["beta"] * first)
        elif name == "adagrad":
            second = second + g * g
            w = w - lr * g / (np.sqrt(second) + p["eps"])
        elif name == "rmsprop":
            second = p["beta"] * second + (1 - p["beta"]) * g * g
            w = w - lr * g / (np.sqrt(second) + p["eps"])
        else:
            first = p["beta1"] * first + (1 - p["beta1"]) * g
            second = p["beta2"] * second + (1 - p["beta2"]) * g * g
            m, v = first / (1 - p["beta1"] ** t), second / (1 - p["beta2"] ** t)
            decay = lr * p.get("weight_decay", 0.0) * w
            w = w - lr * m / (np.sqrt(v) + p["eps"]) - decay
    return w


DECAYS = st.sampled_from([0.0, 0.5, 0.9, 0.99, 0.999])
CHOICES = {
    "momentum": {"beta": DECAYS},
    "nesterov": {"beta": DECAYS},
    "adagrad": {"eps": st.sampled_from([1e-10, 1e-3])},
    "rmsprop": {"beta": DECAYS, "eps": st.sampled_from([1e-8, 1e-3])},
    "adam": {"beta1": DECAYS, "beta2": DECAYS, "eps": st.sampled_from([1e-8, 1e-3])},
    "adamw": {"beta1": DECAYS, "beta2": DECAYS, "eps": st.sampled_from([1e-8, 1e-3]), "weight_decay": st.sampled_from([0.0, 0.01, 0.3])},
}


@pytest.mark.parametrize("name", STATEFUL)
@given(data=st.data(), storage=st.sampled_from(["f32", "f64"]), steps=st.integers(1, 12), count=st.integers(1, 40), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_steps_are_those_of_the_paper(name: str, data: st.DataObject, storage: str, steps: int, count: int, seed: int) -> None:
    chosen = {key: data.draw(choice) for key, choice in CHOICES[name].items()}
    lr = data.draw(st.sampled_from([0.001, 0.1]))
    spec = spec_of(name, storage, lr=lr, **chosen)
    pushes = [numbers(storage, count, 1000 * seed + i) for i in range(steps)]
    start = numbers(storage, count, seed)
    held: Held | None = fresh(name, start)
    for step, push in enumerate(pushes, 1):
        assert held is not None
        held = dense(spec, held, push, step)
    assert held is not None
    want = by_the_book(name, start, pushes, lr, **chosen)
    tolerance = 1e-6 * steps if storage == "f32" else 1e-13 * steps
    # Of a float32 sum that cancels only the absolute error is small: that of the largest term.
    np.testing.assert_allclose(held.values, want, rtol=tolerance, atol=tolerance * (1 + lr * 10 * steps))


GOLDEN = {  # w = 1, -2, 0.5; pushes 0.5, -1, 0.25 and then -0.1, 0.2, 3; lr 0.1, otherwise the defaults; from 50-digit decimals
    "momentum": (0.915, -1.83, 0.1525),
    "nesterov": (0.8835, -1.767, -0.13775),
    "adagrad": (0.9196116135299722, -1.9196116135218952, 0.3003454242188224),
    "rmsprop": (0.19706601679787483, -1.1970659362153748, -1.4965796905636775),
    "adam": (0.8488973956993234, -1.8488973939904942, 0.32028134201094743),
    "adamw": (0.8469983956973235, -1.8449993939894942, 0.3193818420069474),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_two_steps_in_literal_numbers(name: str) -> None:
    spec = spec_of(name, lr=0.1)
    held: Held | None = fresh(name, np.array([1.0, -2.0, 0.5]))
    for step, push in enumerate(([0.5, -1.0, 0.25], [-0.1, 0.2, 3.0]), 1):
        assert held is not None
        held = dense(spec, held, np.array(push), step)
    assert held is not None
    np.testing.assert_allclose(held.values, GOLDEN[name], rtol=1e-9)


@pytest.mark.parametrize("name", ("adam", "adamw"))
def test_the_first_step_of_adam_has_the_size_of_lr(name: str) -> None:
    """Without bias correction it would be a third of it."""
    chosen = {"lr": 0.1, "weight_decay": 0.0} if name == "adamw" else {"lr": 0.1}
    spec = spec_of(name, "f64", **chosen)
    held = dense(spec, fresh(name, np.zeros(3)), np.array([1e-3, -5.0, 2e6]), 1)
    assert held is not None
    np.testing.assert_allclose(held.values, [-0.1, 0.1, -0.1], rtol=2e-5)


# -- the same bits everywhere

C_SOURCE = """
#include <math.h>
#define ROOT(x) _Generic((x), float: sqrtf, double: sqrt)(x)
typedef NUMBER n;
void momentum(n *w, const n *g, n *v, n *q, const n *s, long c) { for (long i = 0; i < c; i++) { v[i] = v[i] * s[2] + g[i]; w[i] = w[i] - v[i] * s[1]; } }
void nesterov(n *w, const n *g, n *v, n *q, const n *s, long c) { for (long i = 0; i < c; i++) { v[i] = v[i] * s[2] + g[i]; w[i] = w[i] - (v[i] * s[2] + g[i]) * s[1]; } }
void adagrad(n *w, const n *g, n *a, n *q, const n *s, long c) { for (long i = 0; i < c; i++) { a[i] = a[i] + g[i] * g[i]; w[i] = w[i] - g[i] / (ROOT(a[i]) + s[2]) * s[1]; } }
void rmsprop(n *w, const n *g, n *a, n *q, const n *s, long c) { for (long i = 0; i < c; i++) { a[i] = a[i] * s[2] + g[i] * g[i]; w[i] = w[i] - g[i] / (ROOT(a[i]) + s[3]) * s[1]; } }
void adam(n *w, const n *g, n *p, n *q, const n *s, long c) { for (long i = 0; i < c; i++) {
    p[i] = p[i] * s[2] + g[i]; q[i] = q[i] * s[3] + g[i] * g[i]; w[i] = w[i] - p[i] / (ROOT(q[i]) + s[6]) * s[5]; } }
void adamw(n *w, const n *g, n *p, n *q, const n *s, long c) { for (long i = 0; i < c; i++) {
    p[i] = p[i] * s[2] + g[i]; q[i] = q[i] * s[3] + g[i] * g[i]; w[i] = w[i] - (p[i] / (ROOT(q[i]) + s[7]) * s[6] + w[i] * s[5]); } }
"""


@pytest.fixture(scope="module", params=("f32", "f64"))
def c_library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    kind = request.param
    folder = tmp_path_factory.mktemp(f"steps-{kind}")
    (folder / "step.c").write_text(C_SOURCE)
    number = "float" if kind == "f32" else "double"
    command = ["gcc", "-O2", "-march=native", "-ffp-contract=off", f"-DNUMBER={number}", "-shared", "-fPIC", "-o", "step.so", "step.c", "-lm"]
    try:
        subprocess.run(command, cwd=folder, check=True)
    except FileNotFoundError:
        pytest.skip("no gcc here")
    return kind, ctypes.CDLL(str(Path(folder) / "step.so"))


@pytest.mark.parametrize("name", STATEFUL)
def test_steps_have_the_bits_of_a_c_loop(name: str, c_library: tuple[str, Any]) -> None:
    """In the order that the kernels document, each operation rounded, no fused multiply-add."""
    kind, library = c_library
    count = CHUNK + 1000
    spec = spec_of(name, kind, lr=0.1)
    kernel = KERNELS[name]
    w = numbers(kind, count, 1)
    w[:8] = np.finfo(w.dtype).tiny  # denormal numbers count too
    held: Held | None = fresh(name, w.copy())
    state = [np.zeros_like(w), np.zeros_like(w)]
    for step in range(1, 9):
        g = numbers(kind, count, step) * w.dtype.type(10.0 ** (step - 4))
        assert held is not None
        held = dense(spec, held, g, step)
        scalars = kernel.scalars(spec, 1.0, 1.0)
        factors = [float(factor[0]) for factor in kernel.factors(scalars, np.array([step]))]
        passed = np.array([*scalars, *factors]).astype(w.dtype)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (w, g, *state, passed)]
        getattr(library, name)(*pointers, ctypes.c_long(count))
        assert held is not None and held.values.tobytes() == w.tobytes()
        assert all(ours.tobytes() == theirs.tobytes() for ours, theirs in zip(held.slots, state))


@pytest.mark.parametrize("storage", KINDS)
@pytest.mark.parametrize("name", FLOAT_KERNELS)
@pytest.mark.parametrize("shape", ((1, 1), (37, 3), (5, CHUNK // 4 + 1), (3, CHUNK + 9), (CHUNK + 5, 1)))
def test_a_row_steps_as_a_block_does(name: str, storage: str, shape: tuple[int, int]) -> None:
    """Bit for bit, each row with the number of its own step; at the edges of chunks too."""
    spec = spec_of(name, storage)
    held = fresh(name, numbers(storage, shape, 1))
    slots = tuple(np.abs(numbers("f32", shape, 2 + i)).astype(slot.dtype) for i, slot in enumerate(held.slots))
    g = numbers(storage, shape, 9)
    counts = np.random.default_rng(5).choice([1, 2, 3, 999, 4095, 4096, 70_000], shape[0]) if shape[0] > 5 else np.arange(1, shape[0] + 1)
    found = rows(spec, Held(held.values, slots), g, counts.astype(np.int64))
    assert found is not None
    for count in np.unique(counts):  # all rows of one step number are a block
        at = counts == count
        want = dense(spec, Held(held.values[at].reshape(-1), tuple(slot[at].reshape(-1) for slot in slots)), g[at].reshape(-1), int(count))
        assert want is not None
        assert found.values[at].tobytes() == want.values.tobytes()
        assert all(ours[at].tobytes() == theirs.tobytes() for ours, theirs in zip(found.slots, want.slots))


@pytest.mark.parametrize("storage", KINDS)
@pytest.mark.parametrize("name", FLOAT_KERNELS)
def test_the_cut_into_chunks_does_not_show(name: str, storage: str) -> None:
    count = 2 * CHUNK + 17
    spec = spec_of(name, storage)
    held = fresh(name, numbers(storage, count, 1))
    g = numbers(storage, count, 2)
    whole = dense(spec, held, g, 3)
    assert whole is not None
    for start, stop in ((0, 1), (1, CHUNK - 1), (CHUNK - 1, CHUNK + 1), (CHUNK + 1, count)):
        part = dense(spec, Held(held.values[start:stop], tuple(slot[start:stop] for slot in held.slots)), g[start:stop], 3)
        assert part is not None and part.values.tobytes() == whole.values[start:stop].tobytes()


@pytest.mark.parametrize("storage", KINDS)
@pytest.mark.parametrize("name", FLOAT_KERNELS)
def test_a_step_may_be_written_over_what_it_reads(name: str, storage: str) -> None:
    count = CHUNK + 5
    spec = spec_of(name, storage)
    kernel = KERNELS[name]
    held = dense(spec, fresh(name, numbers(storage, count, 1)), numbers(storage, count, 2), 1)
    assert held is not None
    g = numbers(storage, count, 3)
    apart = dense(spec, held, g, 2)
    assert apart is not None
    scalars = kernel.scalars(spec, 1.0, 1.0)
    assert advance(kernel, held.values, Mix.sum_of([g]), held.slots, held.values, held.slots, 2, scalars, Scratch(held.values.dtype))
    assert held.values.tobytes() == apart.values.tobytes()
    assert all(ours.tobytes() == theirs.tobytes() for ours, theirs in zip(held.slots, apart.slots))


def test_rows_that_do_not_lie_together_are_no_rows() -> None:
    spec = spec_of("sgd")
    with pytest.raises(AssertionError, match="one after the other"):
        rows(spec, Held(np.zeros((4, 6))[:, :3], ()), np.zeros((4, 3)), np.ones(4, np.int64))


# -- powers


@given(beta=st.sampled_from([0.0, 0.5, 0.9, 0.999, 0.999999, 1 - 2.0**-53]), step=st.one_of(st.integers(0, 20_000), st.integers(0, STEPS_MAX)))
@settings(max_examples=200, deadline=None)
def test_a_power_is_the_power(beta: float, step: int) -> None:
    found = float(powers(beta).of(np.array([step]))[0])
    want = math.exp(step * math.log1p(-(1 - beta))) if beta else float(step == 0)
    assert found == pytest.approx(want, rel=1e-9, abs=1e-300)
    among = powers(beta).of(np.array([1, step, 5_000, 3]))
    assert float(among[1]) == found


def test_powers_are_exact_where_numbers_are() -> None:
    assert [float(x) for x in powers(0.5).of(np.arange(1, 60))] == [float(Fraction(1, 2**t)) for t in range(1, 60)]
    last = powers(0.999).of(np.array([STEPS_MAX, STEPS_MAX + 1, 1 << 62]))
    assert float(last[0]) == float(last[1]) == float(last[2])


# -- what is not finite


@pytest.mark.parametrize("bad", (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize("storage", KINDS)
@pytest.mark.parametrize("name", FLOAT_KERNELS)
def test_a_push_that_is_no_number_is_refused_by_blocks_and_rows(name: str, storage: str, bad: float) -> None:
    spec = spec_of(name, storage)
    for share in (1.0, 0.25, 0.0):
        g = numbers(storage, (30, 3), 1)
        g[17, 1] = bad
        held = fresh(name, numbers(storage, (30, 3), 2))
        assert rows(spec, held, g, np.ones(30, np.int64), share) is None
        assert dense(spec, Held(held.values.reshape(-1), tuple(slot.reshape(-1) for slot in held.slots)), g.reshape(-1), 1, share) is None


@pytest.mark.parametrize("name", ("adagrad", "rmsprop", "adam", "adamw"))
def test_a_state_that_overflows_is_seen_although_the_values_are_finite(name: str) -> None:
    """The square of 1e30 is infinite in float32, and a step divided by infinity is none."""
    spec = spec_of(name, "f32")
    count = CHUNK + 3
    for at in (0, CHUNK + 2):
        g = np.zeros(count, np.float32)
        g[at] = 1e30
        assert dense(spec, fresh(name, np.zeros(count, np.float32)), g, 1) is None


EXTREMES = [0.0, 1.0, -1.0, 1e-45, 1e-20, 1e18, -1.8e19, 1.9e19, 1e30, 3.4e38, -3.4e38, math.inf, math.nan]


@pytest.mark.parametrize("name", FLOAT_KERNELS)
@given(w=st.sampled_from(EXTREMES[:-2]), pushes=st.lists(st.sampled_from(EXTREMES), min_size=1, max_size=5), share=st.sampled_from([1.0, 0.5, 0.0]))
@settings(max_examples=150, deadline=None)
def test_whatever_is_taken_is_finite(name: str, w: float, pushes: list[float], share: float) -> None:
    chosen = {"lr": 0.0} if share == 0.5 and name not in ("add", "assign") else {}
    spec = spec_of(name, "f32", **chosen)
    held = fresh(name, np.array([w, 0.5], np.float32))
    for step, push in enumerate(pushes, 1):
        new = dense(spec, held, np.array([push, 0.25], np.float32), step, share)
        if new is not None:
            held = new
            assert all(np.isfinite(array).all() for array in (held.values, *held.slots))
        else:
            assert not (abs(push) <= 1e18 and abs(w) <= 1e18), "a harmless push was refused"


# -- half precision, whole numbers


@pytest.mark.parametrize("name", FLOAT_KERNELS)
def test_half_precision_is_computed_in_single_and_rounded_at_the_end(name: str) -> None:
    half, single = spec_of(name, "f16"), spec_of(name, "f32")
    held = fresh(name, numbers("f16", 300, 1))
    assert all(slot.dtype == np.float32 for slot in held.slots)
    for step in (1, 2, 3):
        g = numbers("f16", 300, step + 5)
        wide = dense(single, Held(held.values.astype(np.float32), held.slots), g.astype(np.float32), step)
        found = dense(half, held, g, step)
        assert wide is not None and found is not None and found.values.dtype == np.float16
        assert found.values.tobytes() == wide.values.astype(np.float16).tobytes()
        assert all(ours.tobytes() == theirs.tobytes() for ours, theirs in zip(found.slots, wide.slots))
        held = found


def test_half_precision_overflow_is_refused_and_small_state_is_kept() -> None:
    spec = spec_of("add", "f16")
    assert dense(spec, fresh("add", np.array([60_000.0], np.float16)), np.array([6_000.0], np.float16), 1) is None
    held = fresh("rmsprop", np.zeros(1, np.float16))
    small = dense(spec_of("rmsprop", "f16"), held, np.array([1e-5], np.float16), 1)
    assert small is not None and small.slots[0][0] > 0  # 1e-10 is zero in half precision


def test_pushes_in_half_precision_are_added_in_single() -> None:
    """The sum of these leaves the range of float16 on its way."""
    arrays = [np.array([value], np.float16) for value in (60_000.0, 60_000.0, -60_000.0, 2049.0)]
    kernel, out = KERNELS["assign"], np.zeros(1, np.float16)
    scalars = kernel.scalars(spec_of("assign", "f16"), 1.0, 1.0)
    mixed = Mix.sum_of(arrays)
    assert advance(kernel, out, mixed, (), out, (), 1, scalars, Scratch(out.dtype)) and out[0] == np.float16(62_048)
    mean = Mix.mean_of(arrays, [1.0] * 4, 4.0)
    assert mean is not None and advance(kernel, out, mean, (), out, (), 1, scalars, Scratch(out.dtype))
    assert out[0] == np.float16((60_000.0 + np.float32(np.float16(2049.0))) / 4)
    weighed = Mix.mean_of(arrays, [1.0, 2.0, 2.0, 1.0], 6.0)
    assert weighed is not None and advance(kernel, out, weighed, (), out, (), 1, scalars, Scratch(out.dtype))
    assert out[0] == np.float16((60_000.0 + np.float32(np.float16(2049.0))) / 6)


@pytest.mark.parametrize("name", ("sgd", *STATEFUL))
def test_whole_numbers_take_no_optimizer_that_makes_fractions(name: str) -> None:
    with pytest.raises(UsageError, match="fractions"):
        TableSpec("w", (4,), dtype="i64", optimizer=name)


def test_rows_of_whole_numbers_are_added_and_refused_when_they_do_not_fit() -> None:
    spec = TableSpec("w", (9, 2), kind="sparse", dtype="i64", optimizer="add")
    held = Held(np.array([[1, 2], [3, 2**63 - 1]]), ())
    found = rows(spec, held, np.array([[10, 20], [30, 0]]), np.ones(2, np.int64))
    assert found is not None and found.values.tolist() == [[11, 22], [33, 2**63 - 1]]
    assert rows(spec, held, np.array([[0, 0], [0, 1]]), np.ones(2, np.int64)) is None


# -- share and lr_factor


@pytest.mark.parametrize("name", ("adagrad", "rmsprop", "adam", "adamw"))
def test_a_share_scales_the_step_of_an_adaptive_optimizer_and_not_its_state(name: str) -> None:
    spec = spec_of(name, lr=0.5)
    start, g = np.array([1.0, -3.0]), np.array([0.5, 20.0])
    full, part = dense(spec, fresh(name, start), g, 1), dense(spec, fresh(name, start), g, 1, share=0.25)
    assert full is not None and part is not None
    np.testing.assert_allclose(part.values - start, (full.values - start) / 4, rtol=1e-12)
    assert all(ours.tobytes() == theirs.tobytes() for ours, theirs in zip(part.slots, full.slots))


@pytest.mark.parametrize("name", ("momentum", "nesterov"))
def test_with_momentum_each_push_counts_what_it_weighs_over_all_later_steps(name: str) -> None:
    """One push of share 0.1, then many of nothing with the share 0.9: it moves the values by 0.1 of the whole."""
    spec = spec_of(name, lr=0.5, beta=0.5)
    held: Held | None = fresh(name, np.zeros(1))
    for step in range(1, 80):
        assert held is not None
        held = dense(spec, held, np.array([8.0 if step == 1 else 0.0]), step, share=0.1 if step == 1 else 0.9)
    assert held is not None
    assert held.values[0] == pytest.approx(-0.5 * 0.1 * 8 / (1 - 0.5))


@pytest.mark.parametrize("storage", KINDS)
@pytest.mark.parametrize("name", FLOAT_KERNELS)
def test_a_push_that_nobody_weighs_changes_nothing(name: str, storage: str) -> None:
    spec = spec_of(name, storage)
    held = dense(spec, fresh(name, numbers(storage, 50, 1)), numbers(storage, 50, 2), 1)
    assert held is not None
    found = dense(spec, held, numbers(storage, 50, 3), 2, share=0.0)
    assert found is not None and found.values.tobytes() == held.values.tobytes()
    assert all(ours.tobytes() == theirs.tobytes() for ours, theirs in zip(found.slots, held.slots))


@pytest.mark.parametrize("name", ("sgd", *STATEFUL))
def test_the_factor_of_a_clock_multiplies_lr(name: str) -> None:
    start, g = np.array([1.0, -3.0]), np.array([0.5, 20.0])
    scaled = dense(spec_of(name, lr=0.125), fresh(name, start), g, 1, lr_factor=4.0)
    plain = dense(spec_of(name, lr=0.5), fresh(name, start), g, 1)
    assert scaled is not None and plain is not None and scaled.values.tobytes() == plain.values.tobytes()


@pytest.mark.parametrize("name", ("sgd", *STATEFUL))
def test_an_lr_that_grows_out_of_range_is_refused_like_any_overflow(name: str) -> None:
    spec = spec_of(name, "f32", lr=4e37)
    held, g = fresh(name, np.ones((2, 3), np.float32)), np.ones((2, 3), np.float32)
    assert dense(spec, Held(held.values[0], tuple(slot[0] for slot in held.slots)), g[0], 1, lr_factor=4096.0) is None
    kernel = KERNELS[name]
    scalars = kernel.scalars(spec, 1.0, 4096.0)
    scratch = Scratch(held.values.dtype)
    assert not advance_rows(kernel, held.values, g, held.slots, held.values, held.slots, np.ones(2, np.int64), scalars, scratch)


@pytest.mark.parametrize("name", ("add", "assign"))
def test_a_finished_step_knows_no_lr(name: str) -> None:
    spec = spec_of(name)
    assert KERNELS[name].scalars(spec, 0.5, 8.0) == KERNELS[name].scalars(spec, 0.5, 1.0)


def test_a_block_of_nothing_is_stepped_to_nothing() -> None:
    kernel, none = KERNELS["adam"], np.zeros((0, 4))
    scalars = kernel.scalars(spec_of("adam"), 1.0, 1.0)
    assert advance_rows(kernel, none, none, (none, none), none, (none, none), np.zeros(0, np.int64), scalars, Scratch(none.dtype))


def test_only_a_kernel_that_counts_has_factors() -> None:
    assert [name for name in KERNELS if KERNELS[name].counts] == ["adam", "adamw"]
    ones = np.ones(1, np.int64)
    assert all(kernel.factors((1.0,), ones) == () for kernel in KERNELS.values() if not kernel.counts)


@pytest.mark.parametrize("storage", ("f16", "f32"))
def test_an_eps_that_single_precision_cannot_hold_is_refused(storage: str) -> None:
    """With eps = 0 a number that was never pushed would become 0 / 0."""
    with pytest.raises(UsageError, match="single precision"):
        spec_of("adam", storage, eps=1e-60)
    assert spec_of("adam", "f64", eps=1e-60).setting("eps") == 1e-60
    spec = spec_of("adam", storage, eps=2e-45)
    held = dense(spec, fresh("adam", np.ones(2, KINDS[storage])), np.array([0.0, 1.0], KINDS[storage]), 1)
    assert held is not None and held.values[0] == 1
