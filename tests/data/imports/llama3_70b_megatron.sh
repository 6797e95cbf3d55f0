#!/bin/bash
# Llama-3-70B on 64 H100 as NVIDIA published it (Megatron-Bridge 067f987d, docs/performance-summary-archive.md, DGX-H100:
# FP8-CS, GBS 128, MBS 1, 8,192 tokens, TP 4, PP 8, VP 5, 1,602 tokens/s per GPU), as arguments of pretrain_gpt.py; the
# loss is fused there by default (models/gpt_provider.py).
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=8
TP=4
PP=8

MODEL_ARGS=(
    --num-layers 80
    --hidden-size 8192
    --ffn-hidden-size 28672
    --num-attention-heads 64
    --group-query-attention
    --num-query-groups 8
    --swiglu
    --normalization RMSNorm
    --position-embedding-type rope
    --rotary-base 500000
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --seq-length 8192
    --max-position-embeddings 8192
    --vocab-size 128256
)

torchrun --nproc-per-node $GPUS_PER_NODE --nnodes $NNODES --node-rank $RANK --master-addr $MASTER --master-port 6000 \
    pretrain_gpt.py ${MODEL_ARGS[@]} \
    --tensor-model-parallel-size $TP --sequence-parallel \
    --pipeline-model-parallel-size $PP --num-layers-per-virtual-pipeline-stage 2 \
    --micro-batch-size 1 --global-batch-size 128 \
    --bf16 --fp8-format hybrid --fp8-recipe tensorwise \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --cross-entropy-loss-fusion --attention-backend fused --lr 3e-4 --train-iters 1000 --mock-data --tokenizer-type NullTokenizer \
    --manual-gc --log-throughput
