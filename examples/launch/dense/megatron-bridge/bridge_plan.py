"""dp16-gfull-mbs1-z2-rnone: llama-3.1-8b on 2 x 8 h100-sxm-80gb, 13.6 s per step predicted
Plan 0ba9e4e37c50, layout 1. Written by meshwright 0.1.0; options checked against Megatron-Bridge 0.6.0 (51885cf1).

Not from the plan, edit or give as `section.field=value` after launch.sh: data (mock data by default), tokenizer,
learning rate, iterations, checkpoints, and initialisation of the model.
"""

import sys

import torch
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    GPTDatasetConfig,
    LoggerConfig,
    OptimizerConfig,
    RerunStateMachineConfig,
    RNGConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainingConfig,
)
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides


def plan() -> ConfigContainer:
    return ConfigContainer(
        model=GPTModelProvider(
            num_layers=32,
            hidden_size=4096,
            num_attention_heads=32,
            kv_channels=128,
            num_query_groups=8,
            ffn_hidden_size=14336,
            gated_linear_unit=True,
            activation_func="silu",
            add_bias_linear=False,
            normalization="RMSNorm",
            position_embedding_type="rope",
            rotary_base=500000,
            rope_scaling=True,
            rope_scaling_factor=8.0,
            share_embeddings_and_output_weights=False,
            attention_dropout=0.0,
            hidden_dropout=0.0,
            vocab_size=128256,
            gradient_accumulation_fusion=False,
            seq_length=8192,
            cuda_graph_impl="full_iteration",
            use_te_rng_tracker=True,
            cross_entropy_loss_fusion=True,
            cross_entropy_fusion_impl="native",
            bias_activation_fusion=True,
            bias_dropout_fusion=True,
            apply_rope_fusion=True,
        ),
        train=TrainingConfig(
            micro_batch_size=1,
            global_batch_size=256,
            train_iters=1000,
        ),
        optimizer=OptimizerConfig(
            use_distributed_optimizer=True,
            optimizer="adam",
            overlap_param_gather=True,
            lr=0.0003,
            min_lr=3e-05,
            weight_decay=0.1,
        ),
        scheduler=SchedulerConfig(
            lr_decay_style="cosine",
            lr_warmup_iters=100,
        ),
        ddp=DistributedDataParallelConfig(
            use_distributed_optimizer=True,
            use_megatron_fsdp=True,
            data_parallel_sharding_strategy="optim_grads",
            check_for_nan_in_grad=False,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
            megatron_fsdp_cuda_graph_mode=True,
            fsdp_all_gather_in_start_param_sync=False,
        ),
        dataset=GPTDatasetConfig(
            seq_length=8192,
            random_seed=1234,
            dataloader_type="single",
            split="9999,8,2",
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
        ),
        tokenizer=TokenizerConfig(
            tokenizer_type="NullTokenizer",
            vocab_size=128256,
            use_tokenizer_vocab_size=True,
        ),
        rerun_state_machine=RerunStateMachineConfig(
            check_for_nan_in_loss=False,
        ),
        rng=RNGConfig(
            te_rng_tracker=True,
        ),
        checkpoint=CheckpointConfig(
            ckpt_format="fsdp_dtensor",
        ),
        logger=LoggerConfig(
            log_interval=10,
        ),
        mixed_precision=MixedPrecisionConfig(
            bf16=True,
            params_dtype=torch.bfloat16,
            pipeline_dtype=torch.bfloat16,
            grad_reduce_in_fp32=True,
        ),
    )


if __name__ == "__main__":
    pretrain(config=process_config_with_overrides(plan(), cli_overrides=sys.argv[1:]), forward_step_func=forward_step)
