"""Keeps grad open and forgets to flush it: the numbers reach the file when the next ones are written."""

from honest import Trainer


class Faulty(Trainer):
    grad = None

    def write_grad(self, numbers):
        if self.grad is None:
            self.grad = open(self.dir + "/grad", "r+b")
        self.grad.seek(0)
        self.grad.write(self.raw(numbers))

    def wait(self, seq):
        if self.grad is not None:
            self.grad.flush()
        return super().wait(seq)


Faulty().train()
