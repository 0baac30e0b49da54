"""Does not count a request that was refused."""

from honest import Trainer


class Faulty(Trainer):
    def mind(self):
        super().mind()
        if self.answer[0] == "err" and not self.over:
            self.seq -= 1


Faulty().train()
