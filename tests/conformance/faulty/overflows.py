"""Pushes what came of a division by zero."""

from honest import Trainer


class Faulty(Trainer):
    def gradient(self):
        numbers = super().gradient()
        if self.clock == 2:
            numbers[3] = float("nan")
        return numbers


Faulty().train()
