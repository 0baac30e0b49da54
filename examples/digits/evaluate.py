"""Part of the held-out digits that a model gets right.

    python evaluate.py test.txt weights.txt
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def read_weights(path: Path) -> np.ndarray:
    """A model: 10 rows of 64 pixels and a bias, from a text file with one number a line or a raw f64 file."""
    weights = np.fromfile(path, "<f8") if path.suffix == ".bin" else np.loadtxt(path)
    if weights.size != 650:
        raise SystemExit(f"evaluate.py: {path} holds {weights.size} numbers, a model has 650")
    return weights.reshape(10, 65)


def accuracy(test: Path, weights: np.ndarray) -> float:
    rows = np.loadtxt(test)
    pixels = np.column_stack([rows[:, 1:] / 16, np.ones(len(rows))])
    return float(np.mean(np.argmax(pixels @ weights.T, axis=1) == rows[:, 0]))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python evaluate.py TEST WEIGHTS")
    print(f"{accuracy(Path(sys.argv[1]), read_weights(Path(sys.argv[2]))):.3f}")
