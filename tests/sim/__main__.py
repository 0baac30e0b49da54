"""Simulate from the command line.

    python -m tests.sim 17 --trace          one seed, every event printed
    python -m tests.sim --seeds 200         seeds 1 to 200, every 20th twice; exit 1 names the command that replays a failure
    python -m tests.sim --mutants           each sabotage must be caught
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import traceback

from .cluster import FINDINGS, Cluster
from .mutants import hunt_all
from .ordered import registered
from .resumed import Resumed
from .weather import draw_plan
from .world import World

TWICE_EVERY = 20
STORY_LINES = 60


def main() -> int:
    arguments = _arguments()
    if arguments.mutants:
        return 0 if hunt_all(lambda line: print(line, flush=True)) else 1
    if arguments.seed is not None:
        return run_one(arguments.seed, arguments.trace)
    return run_many(arguments.start, arguments.seeds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.sim", description="Whole clusters in one process, each from one seed.")
    parser.add_argument("seed", nargs="?", type=int, help="run this seed")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--seeds", type=int, metavar="N", help="run N seeds")
    parser.add_argument("--start", type=int, default=1, metavar="S", help="the first of them (default 1)")
    parser.add_argument("--mutants", action="store_true", help="run the list of sabotages; each must be caught")
    arguments = parser.parse_args()
    if (arguments.seed is not None) + (arguments.seeds is not None) + arguments.mutants != 1:
        parser.error("give a SEED, --seeds N or --mutants")
    return arguments


def simulate(seed: int, trace: bool = False) -> tuple[World, str | None]:
    """Run a seed: (world, what went wrong or None)."""
    world = World(seed, trace)
    try:
        with registered():
            plan = draw_plan(world)
            outcome = (Resumed if plan.resumes else Cluster)(world, plan).run()
    except FINDINGS as error:
        # A report says what was promised; the story says what happened; the replay command says it again.
        where = "".join(traceback.format_exception(error)[-4:])
        story = "" if trace else f"{world.story(STORY_LINES)}\n"
        return world, f"{story}{where}"
    world.reached(f"outcome {outcome}")
    return world, None


def fingerprint(world: World) -> str:
    return f"digest {world.digest:08x} events {world.events} at {world.now_us} us"


def run_one(seed: int, trace: bool) -> int:
    world, wrong = simulate(seed, trace)
    if wrong:
        print(wrong)
        print(f"seed {seed} FAILED; replay: python -m tests.sim {seed} --trace")
        return 1
    print(f"seed {seed} ok: {fingerprint(world)}")
    print(f"  faults: {_counted(world.faults)}")
    print(f"  marks:  {_counted(world.marks)}")
    return 0


def run_many(start: int, count: int) -> int:
    began = time.monotonic()
    faults: dict[str, int] = {}
    marks: dict[str, int] = {}
    events = simulated_us = 0
    failed: list[int] = []
    for done, seed in enumerate(range(start, start + count), 1):
        world, wrong = simulate(seed)
        if not wrong and seed % TWICE_EVERY == 0:
            wrong = differs(seed, fingerprint(world))
        if wrong:
            failed.append(seed)
            print(f"{wrong}\nseed {seed} FAILED; replay: python -m tests.sim {seed} --trace", flush=True)
        events += world.events
        simulated_us += world.now_us
        for total, part in ((faults, world.faults), (marks, world.marks)):
            for name, number in part.items():
                total[name] = total.get(name, 0) + number
        if done % 10 == 0 or done == count:
            print(f"{done}/{count} seeds, {len(failed)} failed, {time.monotonic() - began:.0f} s", flush=True)
    seconds = max(1e-9, time.monotonic() - began)
    print(f"{events} events, {events / seconds:.0f} a second; {simulated_us / 1e6:.0f} simulated seconds in {seconds:.1f} s")
    print(f"faults: {_counted(faults)}")
    print(f"marks:  {_counted(marks)}")
    if failed:
        print(f"FAILED seeds: {' '.join(map(str, failed))}; replay one: python -m tests.sim {failed[0]} --trace")
        return 1
    print(f"all {count} seeds are clean")
    return 0


def differs(seed: int, first: str) -> str | None:
    """Run the seed once more in a process whose strings hash differently; the digests must agree."""
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    command = [sys.executable, "-m", "tests.sim", str(seed)]
    run = subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": other}, capture_output=True, text=True, check=False)
    if f"seed {seed} ok: {first}\n" in run.stdout:
        return None
    return f"seed {seed} is not deterministic: {first} here, elsewhere:\n{run.stdout[-2000:]}{run.stderr[-2000:]}"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items())) or "none"


if __name__ == "__main__":
    sys.exit(main())
