"""Writes a training script for frameworks that train a model of the user.

The script trains a model of transformers from its config.json on rows of tokens. It is a minimal starting point.
"""

from __future__ import annotations

from ...cost_models.quantities.params import total_parameters
from .launchers.base import comment
from .setup import Setup

TRAIN_FILE = "train.py"
# Variable of launch.sh that names the user's script -> its default value.
DEFAULTS = {"TRAIN_SCRIPT": f"$here/{TRAIN_FILE}"}

_COMMON = '''\
{header}"""A minimal training of a model of transformers; `sh launch.sh --help` lists the arguments."""

{imports}

SEQUENCE_LENGTH = {seq_len}
PARAMETERS = {parameters:_}  # of the model that was planned


class Tokens(torch.utils.data.Dataset):
    """Rows of SEQUENCE_LENGTH tokens of a file: .npy, or .bin of uint16 (of uint32 for vocabularies above 65,536).

    Without a file the rows count up from different numbers: a model learns that within a few steps.
    """

    def __init__(self, path, vocabulary):
        self.vocabulary = vocabulary
        self.tokens = None
        if path is not None:
            binary = np.uint16 if vocabulary <= 65_536 else np.uint32
            self.tokens = np.load(path, mmap_mode="r") if path.endswith(".npy") else np.memmap(path, binary, "r")

    def __len__(self):
        return 1_000_000 if self.tokens is None else len(self.tokens) // SEQUENCE_LENGTH

    def __getitem__(self, row):
        if self.tokens is None:
            numbers = (row + np.arange(SEQUENCE_LENGTH)) % min(self.vocabulary, 100)
        else:
            numbers = self.tokens[row * SEQUENCE_LENGTH : (row + 1) * SEQUENCE_LENGTH]
        ids = torch.from_numpy(np.asarray(numbers, dtype=np.int64))
        return {{"input_ids": ids, "labels": ids}}


def load_model(path, from_scratch):
    """The model of a folder or a hub name, its weights drawn or read. Weights are fp32, which the optimizer keeps."""
    if from_scratch:
        torch.manual_seed(0)  # the same weights on every rank
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=torch.float32)
    else:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    number = sum(getattr(weight, "ds_numel", weight.numel()) for weight in model.parameters())
    if number != PARAMETERS:
        print(f"{{path}} has {{number:,}} parameters, the planned model {{PARAMETERS:,}}", file=sys.stderr)
    return model


'''


def train_script(setup: Setup, header: tuple[str, ...], imports: str, main: str) -> str:
    """The text of train.py. imports, main: the parts of one framework."""
    common = _COMMON.format(
        header=comment(header), imports=imports, seq_len=setup.workload.seq_len,
        parameters=int(total_parameters(setup.model)),
    )  # fmt: skip
    return common + main
