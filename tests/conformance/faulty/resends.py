"""Sends once more what has timed out."""

from honest import Trainer


class Faulty(Trainer):
    def keys(self):
        return " t=200"

    def step(self):
        numbers = self.gradient()
        super().step()
        if self.answer[3].get("code") == "TIMEOUT":
            self.write_grad(numbers)
            self.seq += 1
            self.ask("step", self.seq, self.keys())
            self.mind()


Faulty().train()
