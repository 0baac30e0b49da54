"""Writes the request without its newline."""

from honest import Trainer


class Faulty(Trainer):
    def write_cmd(self, line):
        with open(self.dir + "/cmd", "w") as cmd:
            cmd.write(line)


Faulty().train()
