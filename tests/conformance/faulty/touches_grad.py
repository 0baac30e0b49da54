"""Clears grad for the next gradient as soon as it has rung."""

from honest import COUNT, Trainer


class Faulty(Trainer):
    def send(self, line):
        super().send(line)
        if line.startswith("step"):
            self.write_grad([0.0] * COUNT)


Faulty().train()
