"""Writes the words of the request one after the other over those of the last one."""

import os

from honest import Trainer


class Faulty(Trainer):
    def write_cmd(self, line):
        cmd = os.open(self.dir + "/cmd", os.O_WRONLY)
        for word in line.split():
            os.write(cmd, word.encode() + b" ")
        os.write(cmd, b"\n")
        os.close(cmd)


Faulty().train()
