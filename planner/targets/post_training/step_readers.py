"""The frameworks of post-training whose configs are read: one line each."""

from __future__ import annotations

from ..nemo_rl import options as nemo_rl_options
from ..nemo_rl import read as nemo_rl
from ..nemo_rl.target import NEMO_RL
from ..verl import options as verl_options
from ..verl import read as verl
from ..verl.target import VERL
from .stated import StepReader

# By the name of the format of `import`.
STEP_READERS = {
    VERL.name: StepReader(VERL, verl_options.OVERRIDES, verl.read_step),
    NEMO_RL.name: StepReader(NEMO_RL, nemo_rl_options.OVERRIDES, nemo_rl.read_step),
}
