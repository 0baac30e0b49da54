"""Writes keys of the encoding that its language had long ago."""

from honest import Trainer


class Faulty(Trainer):
    def write_grad(self, numbers):
        super().write_grad(numbers)
        with open(self.dir + "/gkey", "w", encoding="latin-1") as gkey:
            gkey.write("bär\nkäse\n")

    def keys(self):
        return " table=s k=2"

    def gradient(self):
        return [0.5 + self.clock] * 4


Faulty().train()
