"""Prints every error and goes on."""

from honest import Trainer


class Faulty(Trainer):
    def die(self, code):
        print("warning:", code)


Faulty().train()
