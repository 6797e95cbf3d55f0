"""A placement -> arguments of slime's train.py and train_async.py.

slime 0.3.1 (a6272da0): slime/utils/arguments.py (its own options), slime/backends/megatron_utils/arguments.py and
actor.py (what it sets for Megatron-LM, when it scores answers), slime/backends/sglang_utils (engines),
slime/utils/dp_schedule.py (micro-batches). Megatron-LM is that of its docker/Dockerfile, 1dcf0daf.
"""

from __future__ import annotations

import json

from ...document.objective import CLIP_HIGH
from ..megatron.environment import environment
from ..megatron.model import MODEL
from ..megatron.options import LAYOUT
from ..options import Settings, Table
from ..post_training.arguments import Arguments
from ..post_training.core import overlaps
from ..post_training.setup import RlSetup, layout_of
from ..post_training.training_setup import training_setup

ARGUMENTS = Arguments(framework="slime", file="slime.args", submits=True, open_prefixes=("--router-",))
_TRAINED = Table((*MODEL, *LAYOUT))
# Options that slime sets itself, or that have another unit in it.
_ITS_OWN = ("--use-distributed-optimizer", "--micro-batch-size", "--global-batch-size", "--seq-length",
            "--max-position-embeddings", "--bf16", "--moe-router-load-balancing-type")  # fmt: skip


def arguments(setup: RlSetup) -> Settings:
    """Option -> value."""
    return _placement(setup) | _algorithm(setup) | _batch(setup) | _megatron(setup) | _engine(setup)


def _placement(setup: RlSetup) -> Settings:
    nodes, per_node = setup.pool(setup.train)
    out: Settings = {"--actor-num-nodes": nodes, "--actor-num-gpus-per-node": per_node,
                     "--num-gpus-per-node": min(setup.gpus_per_node, setup.num_gpus)}  # fmt: skip
    if setup.candidate.lag and setup.generate is not None:
        return out | {"--rollout-num-gpus": setup.generate.gpus}
    return out | {"--colocate": True}


def _algorithm(setup: RlSetup) -> Settings:
    out: Settings = {"--advantage-estimator": "ppo" if setup.algorithm == "ppo" else "grpo"}
    if setup.algorithm == "dapo":
        out |= {"--eps-clip-high": CLIP_HIGH["dapo"], "--calculate-per-token-loss": True}
    if "reference" in setup.models:
        out["--use-kl-loss"] = True
    # Without a critic the loss of a single update takes its own scores; else the trainer scores first (actor.py).
    own = setup.trains_on_policy and setup.algorithm != "ppo"
    if "logprobs" not in setup.calls and not own:
        out["--use-rollout-logprobs"] = True
    return out


def _batch(setup: RlSetup) -> Settings:
    return {
        "--hf-checkpoint": setup.names["policy"], "--rollout-batch-size": setup.prompts,
        "--n-samples-per-prompt": setup.samples, "--global-batch-size": setup.prompts * setup.samples // setup.updates,
        "--rollout-max-response-len": setup.answer_tokens, "--use-dynamic-batch-size": True,
        "--max-tokens-per-gpu": -(-setup.packed_tokens(setup.train) // layout_of(setup.train).cp),
    }  # fmt: skip


def _megatron(setup: RlSetup) -> Settings:
    trained = training_setup(setup, setup.train)
    out = {name: value for name, value in _TRAINED.write(trained).items() if name not in _ITS_OWN}
    if trained.model.is_moe:
        # slime's lengths vary.
        out |= {"--moe-token-dispatcher-type": "alltoall", "--moe-permute-fusion": True}
    if overlaps(trained.layout):
        out["--overlap-grad-reduce"] = True
    if "--moe-router-enable-expert-bias" in out:
        out["--moe-router-bias-update-rate"] = 0.0
    variables = {name: value for name, value in environment(trained, "megatron").items() if value is not None}
    return out | ({"--train-env-vars": json.dumps(variables, separators=(",", ":"))} if variables else {})


def _engine(setup: RlSetup) -> Settings:
    """Its instances, all of whose sequences it may start at once."""
    engine = setup.rollout
    if engine is None:
        return {}
    out: Settings = {"--rollout-num-gpus-per-engine": engine.tp * engine.attention_dp * engine.pp}
    if engine.pp > 1:
        out["--sglang-pp-size"] = engine.pp
    if engine.attention_dp > 1:
        out |= {"--sglang-dp-size": engine.attention_dp, "--sglang-enable-dp-attention": True}
    if engine.ep > 1:
        out["--sglang-ep-size"] = engine.ep
    return out | {"--sglang-mem-fraction-static": setup.static_share,
                  "--sglang-max-running-requests": engine.cache_sequences,
                  "--sglang-server-concurrency": engine.cache_sequences}  # fmt: skip
