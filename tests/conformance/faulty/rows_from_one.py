"""Counts the rows of an embedding from 1, as its language does."""

import array

from honest import Trainer


class Faulty(Trainer):
    def write_grad(self, numbers):
        super().write_grad(numbers)
        with open(self.dir + "/gidx", "wb") as gidx:
            gidx.write(array.array("I", [1 + (self.clock + i) % 4 for i in range(2)]).tobytes())

    def keys(self):
        return " table=e k=2"

    def gradient(self):
        return [0.5 + self.clock] * 4


Faulty().train()
