"""dp16-mbs8-z3-rfull: qwen3-30b-a3b on 2 x 8 h100-sxm-80gb, 6.36 s per step predicted
Plan 9cbb488801e4, layout 1. Written by meshwright 0.1.0; options checked against NeMo 2.7.3 (pypi).

Not from the plan, edit here: data (mock data), tokenizer, learning rate, steps, log, checkpoints, and initialisation of
the model.
"""

import nemo_run as run
import torch
import torch.nn.functional as F
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from nemo import lightning as nl
from nemo.collections import llm
from nemo.collections.common.tokenizers.tokenizer_utils import get_nmt_tokenizer
from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback
from nemo.lightning.pytorch.optim import CosineAnnealingScheduler


def plan() -> run.Partial:
    return run.Partial(
        llm.pretrain,
        model=run.Config(
            llm.GPTModel,
            config=run.Config(
                llm.GPTConfig,
                num_layers=48,
                hidden_size=2048,
                num_attention_heads=32,
                kv_channels=128,
                num_query_groups=4,
                qk_layernorm=True,
                ffn_hidden_size=768,
                gated_linear_unit=True,
                activation_func=F.silu,
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
                moe_grouped_gemm=True,
                gradient_accumulation_fusion=False,
                seq_length=4096,
                recompute_granularity="full",
                recompute_method="uniform",
                recompute_num_layers=1,
                moe_token_dispatcher_type="flex",
                moe_router_dtype="fp32",
                moe_flex_dispatcher_backend="deepep",
                moe_permute_fusion=True,
                cross_entropy_loss_fusion=True,
                cross_entropy_fusion_impl="native",
                bias_activation_fusion=True,
                bias_dropout_fusion=True,
                apply_rope_fusion=True,
            ),
        ),
        trainer=run.Config(
            nl.Trainer,
            devices=8,
            num_nodes=2,
            accelerator="gpu",
            max_steps=1000,
            limit_val_batches=0,
            log_every_n_steps=10,
            use_distributed_sampler=False,
            strategy=run.Config(
                nl.MegatronStrategy,
                expert_model_parallel_size=1,
                expert_tensor_parallel_size=1,
                fsdp="megatron",
                save_ckpt_format="fsdp_dtensor",
                ddp=run.Config(
                    DistributedDataParallelConfig,
                    data_parallel_sharding_strategy="optim_grads_params",
                ),
            ),
            plugins=run.Config(
                nl.MegatronMixedPrecision,
                precision="bf16-mixed",
                params_dtype=torch.bfloat16,
                pipeline_dtype=torch.bfloat16,
                grad_reduce_in_fp32=True,
            ),
            callbacks=[
                run.Config(
                    MegatronCommOverlapCallback,
                    overlap_grad_reduce=True,
                    overlap_param_gather=True,
                ),
            ],
        ),
        data=run.Config(
            llm.MockDataModule,
            micro_batch_size=8,
            global_batch_size=256,
            seq_length=4096,
            tokenizer=run.Config(get_nmt_tokenizer, library="null", model_name="NullTokenizer", vocab_size=151935),
        ),
        optim=run.Config(
            nl.MegatronOptimizerModule,
            lr_scheduler=run.Config(CosineAnnealingScheduler, max_steps=1000, warmup_steps=100, constant_steps=0, min_lr=3e-05),
            config=run.Config(
                OptimizerConfig,
                use_distributed_optimizer=True,
                optimizer="adam",
                lr=0.0003,
                weight_decay=0.1,
            ),
        ),
    )


if __name__ == "__main__":
    run.run(plan(), direct=True)
