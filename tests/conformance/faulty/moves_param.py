"""Saves the model by moving param away."""

import os

from honest import Trainer


class Faulty(Trainer):
    def bye(self):
        if self.dir is not None and not self.failed:
            os.rename(self.dir + "/param", os.environ["PLUGML_OUT"] + "/model.bin")
        super().bye()


Faulty().train()
