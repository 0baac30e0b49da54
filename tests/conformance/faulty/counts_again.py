"""Gives the request that was answered AGAIN a new number."""

from honest import Trainer


class Faulty(Trainer):
    def again(self, line, seq):
        self.seq += 1
        words = line.split()
        words[1] = str(self.seq)
        self.send(" ".join(words))
        return self.wait(self.seq)


Faulty().train()
