"""Clicks that nobody made: lines `label feature feature ...`, the same ones on every machine.

    python generate.py DIRECTORY [PARTS] [LINES]

Each part is `part0.txt`, `part1.txt`, ...; `all.txt` holds all of them.  Every feature has a true weight, drawn from a
hash of its name; a label is 1 with the probability that the weights of its line say.
"""

import math
import sys
from collections.abc import Iterator
from pathlib import Path

MASK = (1 << 64) - 1
FIELDS = {"user": 2000, "item": 800, "city": 40, "hour": 24, "word": 5000}


def mix(number: int) -> int:
    """Scatter a 64-bit number (splitmix64)."""
    z = (number + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def draws(seed: int) -> Iterator[float]:
    """Numbers from 0 to below 1, for ever."""
    while True:
        seed = (seed + 1) & MASK
        yield (mix(seed) >> 11) / 2.0**53


def true_weight(field: int, value: int) -> float:
    return 4.0 * ((mix(field * 1_000_003 + value) >> 11) / 2.0**53 - 0.5)


def line(numbers: Iterator[float]) -> str:
    """One line: one value of each field, the small ones more often, and a second word."""
    names, total = [], 0.0
    for field, name in enumerate([*FIELDS, "word"]):
        field = min(field, len(FIELDS) - 1)
        value = int(FIELDS[name] * next(numbers) ** 3)
        names.append(f"{name}={value}")
        total += true_weight(field, value)
    return f"{int(next(numbers) < 1 / (1 + math.exp(-total)))} {' '.join(names)}"


def main(directory: str, parts: int, lines: int) -> None:
    Path(directory).mkdir(parents=True, exist_ok=True)
    everything = []
    for part in range(parts):
        numbers = draws(mix(part))
        text = "".join(line(numbers) + "\n" for _ in range(lines))
        Path(directory, f"part{part}.txt").write_text(text)
        everything.append(text)
    Path(directory, "all.txt").write_text("".join(everything))


if __name__ == "__main__":
    words = sys.argv[1:] + ["clicks", "4", "2000"][len(sys.argv) - 1 :]
    main(words[0], int(words[1]), int(words[2]))
