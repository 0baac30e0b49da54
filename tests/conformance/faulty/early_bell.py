"""Rings, and writes the request while the agent is on its way: "it has always worked"."""

from honest import Trainer


class Faulty(Trainer):
    def send(self, line):
        self.ring()
        self.write_cmd(line)


Faulty().train()
