"""dp16-mbs1-z2-rnone: llama-3.1-8b on 2 x 8 h100-sxm-80gb, 13.6 s per step predicted
Plan 33200fcae649, layout 1. Written by meshwright 0.1.0; options checked against NeMo 2.7.3 (pypi).

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
from nemo.collections.llm.gpt.model.llama import Llama31Config
from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback
from nemo.lightning.pytorch.optim import CosineAnnealingScheduler


def plan() -> run.Partial:
    return run.Partial(
        llm.pretrain,
        model=run.Config(
            llm.GPTModel,
            config=run.Config(
                Llama31Config,
                num_layers=32,
                hidden_size=4096,
                num_attention_heads=32,
                kv_channels=128,
                num_query_groups=8,
                ffn_hidden_size=14336,
                gated_linear_unit=True,
                activation_func=F.silu,
                add_bias_linear=False,
                normalization="RMSNorm",
                position_embedding_type="rope",
                rotary_base=500000,
                scale_factor=8.0,
                share_embeddings_and_output_weights=False,
                attention_dropout=0.0,
                hidden_dropout=0.0,
                vocab_size=128256,
                gradient_accumulation_fusion=False,
                seq_length=8192,
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
                fsdp="megatron",
                save_ckpt_format="fsdp_dtensor",
                ddp=run.Config(
                    DistributedDataParallelConfig,
                    data_parallel_sharding_strategy="optim_grads",
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
            micro_batch_size=1,
            global_batch_size=256,
            seq_length=8192,
            tokenizer=run.Config(get_nmt_tokenizer, library="null", model_name="NullTokenizer", vocab_size=128255),
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
