"""pp2-vpp4-dp8-ep8-mbs1-z2-rnone: qwen3-30b-a3b on 2 x 8 h100-sxm-80gb, 8.25 s per step predicted
Plan 21ec71760fb5, layout 1. Written by meshwright 0.1.0; options checked against torchtitan 0.3.0 (pypi).

Not from the plan, edit or give after `--config plan`: data, tokenizer (hf_assets_path), learning rate, steps.
"""

from dataclasses import replace

from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.qwen3 import model_registry
from torchtitan.trainer import Trainer


def as_planned(model_spec):
    """Rotary positions and epsilon of norms as in the plan: a flavour has those of one release of its family."""
    for layer in model_spec.model.layers:
        layer.attention.rope = replace(
            layer.attention.rope,
            theta=1000000.0,
            scaling="none",
        )
        for norm in (layer.attention_norm, layer.ffn_norm, layer.attention.qk_norm):
            norm.eps = 1e-06
    model_spec.model.norm.eps = 1e-06
    return model_spec


def plan() -> Trainer.Config:
    model_spec = as_planned(model_registry("30B-A3B"))
    return Trainer.Config(
        model_spec=model_spec,
        loss=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec)),
        optimizer=default_adamw(lr=3e-4),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        training=TrainingConfig(
            seq_len=4096,
            global_batch_size=256,
            local_batch_size=32,
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(
            pipeline_parallel_degree=2,
            pipeline_parallel_schedule="Interleaved1F1B",
            module_fqns_per_model_part=[
                ["tok_embeddings", *(f"layers.{i}" for i in range(0, 6))],
                [*(f"layers.{i}" for i in range(6, 12))],
                [*(f"layers.{i}" for i in range(12, 18))],
                [*(f"layers.{i}" for i in range(18, 24))],
                [*(f"layers.{i}" for i in range(24, 30))],
                [*(f"layers.{i}" for i in range(30, 36))],
                [*(f"layers.{i}" for i in range(36, 42))],
                [*(f"layers.{i}" for i in range(42, 48)), "norm", "lm_head"],
            ],
            data_parallel_replicate_degree=1,
            data_parallel_shard_degree=8,
            fsdp_reshard_after_forward="never",
            expert_parallel_degree=8,
            pipeline_parallel_microbatch_size=1,
        ),
        compile=CompileConfig(
            enable=True,
        ),
        activation_checkpoint=None,
    )
