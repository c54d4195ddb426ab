"""Says that its hyperparameters make no sense."""

import determined as det
from determined import core

with core.init(tensorboard_mode=core.TensorboardMode.MANUAL):
    raise det.InvalidHP("sleep of 0 makes no sense")
