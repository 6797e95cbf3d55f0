"""tp2-pp2-vpp5-dp4-ep8-epo-g(attn+router+pre)-mbs4-z1-rsel(norm+act)-off(core_attn+attn_proj): qwen3-30b-a3b on 2 x 8 h100-sxm-80gb, 5.41 s per step predicted
Plan 9a0279094b20, layout 1. Written by meshwright 0.1.0; options checked against Megatron-Bridge 0.6.0 (51885cf1).

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
            num_layers=48,
            hidden_size=2048,
            num_attention_heads=32,
            kv_channels=128,
            num_query_groups=4,
            qk_layernorm=True,
            ffn_hidden_size=768,
            gated_linear_unit=True,
            activation_func="silu",
            num_moe_experts=128,
            moe_router_topk=8,
            moe_ffn_hidden_size=768,
            moe_aux_loss_coeff=0.000166666667,
            add_bias_linear=False,
            normalization="RMSNorm",
            layernorm_epsilon=1e-06,
            position_embedding_type="rope",
            rotary_base=1000000,
            share_embeddings_and_output_weights=False,
            attention_dropout=0.0,
            hidden_dropout=0.0,
            vocab_size=151936,
            tensor_model_parallel_size=2,
            sequence_parallel=True,
            pipeline_model_parallel_size=2,
            pipeline_model_parallel_layout="Et*4|t*5|t*5|t*5|t*5|t*5|t*5|t*5|t*5|t*4L",
            virtual_pipeline_model_parallel_size=5,
            expert_model_parallel_size=8,
            expert_tensor_parallel_size=1,
            moe_grouped_gemm=True,
            seq_length=4096,
            recompute_granularity="selective",
            recompute_modules=["layernorm", "moe_act"],
            fine_grained_activation_offloading=True,
            offload_modules=["core_attn", "attn_proj"],
            moe_token_dispatcher_type="flex",
            moe_router_dtype="fp32",
            moe_flex_dispatcher_backend="deepep",
            overlap_moe_expert_parallel_comm=True,
            delay_wgrad_compute=True,
            moe_permute_fusion=True,
            cuda_graph_impl="transformer_engine",
            cuda_graph_modules=["attn", "moe_router", "moe_preprocess"],
            use_te_rng_tracker=True,
            tp_comm_overlap=True,
            cross_entropy_loss_fusion=True,
            cross_entropy_fusion_impl="native",
            bias_activation_fusion=True,
            bias_dropout_fusion=True,
            apply_rope_fusion=True,
            gradient_accumulation_fusion=True,
            deallocate_pipeline_outputs=True,
            overlap_p2p_comm=True,
            batch_p2p_comm=False,
        ),
        train=TrainingConfig(
            micro_batch_size=4,
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
            delay_wgrad_compute=True,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
        ),
        dataset=GPTDatasetConfig(
            seq_length=4096,
            random_seed=1234,
            dataloader_type="single",
            split="9999,8,2",
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
        ),
        tokenizer=TokenizerConfig(
            tokenizer_type="NullTokenizer",
            vocab_size=151936,
            use_tokenizer_vocab_size=True,
        ),
        rng=RNGConfig(
            te_rng_tracker=True,
        ),
        checkpoint=CheckpointConfig(),
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
