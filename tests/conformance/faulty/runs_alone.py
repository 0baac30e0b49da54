"""Takes a channel that cannot be opened for none."""

from honest import Trainer


class Faulty(Trainer):
    def attach(self):
        try:
            super().attach()
        except SystemExit as error:
            if "No such file" not in str(error):
                raise
            self.dir = None


Faulty().train()
