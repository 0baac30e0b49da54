"""Cannot train without plugml any more."""

import os

from honest import Trainer


class Faulty(Trainer):
    def attach(self):
        self.dir = os.environ["PLUGML_DIR"]
        super().attach()


Faulty().train()
