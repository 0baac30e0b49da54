"""Forks a helper that leaves by the same door as its parent."""

import os

from honest import Trainer


class Faulty(Trainer):
    forked = False

    def step(self):
        super().step()
        if not self.forked:
            self.forked = True
            child = os.fork()
            if child == 0:
                self.bye()
                os._exit(0)
            os.waitpid(child, 0)


Faulty().train()
