"""Takes whatever comes for the reply."""

from honest import Trainer


class Faulty(Trainer):
    def wait(self, seq):
        return self.read_record().split()


Faulty().train()
