"""Knows no stop rule: STOP is a failure like any other."""

import sys

from honest import Trainer


class Faulty(Trainer):
    def mind(self):
        super().mind()
        self.over = False
        if self.answer[3].get("code") == "STOP":
            sys.exit("step refused: STOP")


Faulty().train()
