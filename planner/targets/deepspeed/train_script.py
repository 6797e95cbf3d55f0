"""train.py for DeepSpeed: deepspeed.initialize on a model of transformers.

HfDeepSpeedConfig makes transformers shard the weights at construction under ZeRO-3 (integrations/deepspeed.py). The
loader of the engine passes the same rows to all ranks of a model replica (`deepspeed_io`).
"""

IMPORTS = """\
import argparse
import json
import sys
from pathlib import Path

import deepspeed
import ds_plan
import numpy as np
import torch
from deepspeed.utils import RepeatingLoader
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations import HfDeepSpeedConfig"""
MAIN = """\
def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="Folder with config.json, or name on the hub.")
    parser.add_argument("--lr", type=float, required=True, help="Learning rate, in the place of `auto` in the JSON.")
    parser.add_argument("--tokens", help="File of tokens; without it rows that count up.")
    parser.add_argument("--from-scratch", action="store_true", help="Draw the weights instead of reading them.")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--save", help="Folder for a checkpoint at the end.")
    return deepspeed.add_config_arguments(parser).parse_args()


def main():
    args = arguments()
    config = json.loads(Path(args.deepspeed_config).read_text())
    config["optimizer"]["params"]["lr"] = args.lr
    deepspeed.init_distributed()
    in_pieces = HfDeepSpeedConfig(config)  # transformers uses it while this reference exists
    model = load_model(args.model, args.from_scratch)
    if ds_plan.RECOMPUTE:
        model.gradient_checkpointing_enable()
    rows = Tokens(args.tokens, model.config.get_text_config().vocab_size)
    engine, _, loader, _ = deepspeed.initialize(model=model, config=in_pieces.config, training_data=rows)
    engine.train()  # weights that are read come in evaluation mode, which recomputes nothing
    batches = RepeatingLoader(loader)
    for step in range(1, args.steps + 1):
        total = 0.0
        for _ in range(engine.gradient_accumulation_steps()):
            batch = {name: ids.to(engine.device) for name, ids in next(batches).items()}
            loss = engine(**batch).loss
            engine.backward(loss)
            engine.step()
            total += loss.item()
        if engine.global_rank == 0:
            print(f"step {step}  loss {total / engine.gradient_accumulation_steps():.4f}", flush=True)
    if args.save:
        engine.save_checkpoint(args.save)


if __name__ == "__main__":
    main()
"""
