"""train.py for accelerate: transformers.Trainer, which gets accelerate.yaml through variables of the launcher."""

IMPORTS = """\
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments"""
MAIN = '''\
@dataclass
class Script:
    """Arguments in addition to TrainingArguments."""

    model: str = field(metadata={"help": "Folder with config.json, or name on the hub."})
    tokens: str | None = field(default=None, metadata={"help": "File of tokens; without it rows that count up."})
    from_scratch: bool = field(default=False, metadata={"help": "Draw the weights instead of reading them."})


def main():
    parser = HfArgumentParser((Script, TrainingArguments))
    planned = json.loads((Path(__file__).resolve().parent / "training_arguments.json").read_text())
    parser.set_defaults(max_steps=10, logging_steps=1, save_strategy="no", report_to="none", **planned)
    script, arguments = parser.parse_args_into_dataclasses()
    model = load_model(script.model, script.from_scratch)
    rows = Tokens(script.tokens, model.config.get_text_config().vocab_size)
    Trainer(model=model, args=arguments, train_dataset=rows).train()


if __name__ == "__main__":
    main()
'''
