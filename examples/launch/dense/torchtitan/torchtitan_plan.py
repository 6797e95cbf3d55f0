"""dp16-mbs1-z3-rnone: llama-3.1-8b on 2 x 8 h100-sxm-80gb, 15.1 s per step predicted
Plan 2183d07d4741, layout 1. Written by meshwright 0.1.0; options checked against torchtitan 0.3.0 (pypi).

Not from the plan, edit or give after `--config plan`: data, tokenizer (hf_assets_path), learning rate, steps.
"""

from dataclasses import replace

from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


def as_planned(model_spec):
    """Rotary positions and epsilon of norms as in the plan: a flavour has those of one release of its family."""
    for layer in model_spec.model.layers:
        layer.attention.rope = replace(
            layer.attention.rope,
            theta=500000.0,
            scaling="llama",
            scaling_factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=8192,
        )
        for norm in (layer.attention_norm, layer.ffn_norm):
            norm.eps = 1e-05
    model_spec.model.norm.eps = 1e-05
    return model_spec


def plan() -> Trainer.Config:
    model_spec = as_planned(model_registry("8B"))
    return Trainer.Config(
        model_spec=model_spec,
        loss=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec)),
        optimizer=default_adamw(lr=3e-4),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        training=TrainingConfig(
            local_batch_size=1,
            seq_len=8192,
            global_batch_size=256,
        ),
        parallelism=ParallelismConfig(
            data_parallel_replicate_degree=1,
            data_parallel_shard_degree=16,
            fsdp_reshard_after_forward="always",
        ),
        compile=CompileConfig(
            enable=True,
        ),
        activation_checkpoint=None,
    )
