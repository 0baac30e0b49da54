"""Takes the first answer to hello that lies there."""

from honest import Trainer


class Faulty(Trainer):
    def discard(self):
        pass


Faulty().train()
