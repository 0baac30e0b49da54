"""Takes the refusal of an accepted push for one of the step that came next, whose clock it then counts all the same."""

from honest import Trainer


class Faulty(Trainer):
    def step(self):
        self.write_grad(self.gradient())
        self.seq += 1
        self.ask("push", self.seq, " async=1")
        clock = self.clock
        super().step()
        if self.answer[3].get("code") == "RANGE":
            self.clock = clock + 1


Faulty().train()
