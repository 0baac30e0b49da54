"""Mean loss and accuracy of weights on lines of the same form: `python evaluate.py lines.txt weights.txt [weights.txt ...]`.

Of several files a feature has the weight of the last one that names it.
"""

import math
import sys

from trainer import hash_of


def main(path: str, weights: list[str]) -> None:
    w: dict[int, float] = {}
    for name in weights:
        with open(name) as file:
            w.update((int(key), float(value)) for key, value in map(str.split, file))
    loss = right = count = 0.0
    with open(path) as file:
        for words in map(str.split, file):
            z = sum(w.get(hash_of(word), 0.0) for word in words[1:])
            p = 1 / (1 + math.exp(-z))
            loss -= math.log(p if words[0] == "1" else 1 - p)
            right += (p > 0.5) == (words[0] == "1")
            count += 1
    print(f"loss={loss / count:.4f} accuracy={right / count:.4f} features={len(w)}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
