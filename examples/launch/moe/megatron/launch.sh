#!/bin/sh
# tp2-pp2-vpp5-dp4-ep8-epo-g(attn+router+pre)-mbs4-z1-rsel(norm+act)-off(core_attn+attn_proj): qwen3-30b-a3b on 2 x 8 h100-sxm-80gb, 5.41 s per step predicted
# Plan 531e0b239ecb, layout 1. Written by meshwright 0.1.0; options checked against Megatron-LM 0.19.0 (5be96267).
# Starts the ranks of one node. On every node:
#   MEGATRON_PATH=... MASTER_ADDR=<host of node 0> NODE_RANK=<0..1> sh launch.sh --data-path ... --tokenizer-type ... --lr ... --train-iters ...
set -euf
here=$(cd "$(dirname "$0")" && pwd)
: "${MEGATRON_PATH:?must be the folder of a Megatron-LM checkout}"
NODE_RANK=${NODE_RANK:-0} MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-29500}
export CUDA_DEVICE_MAX_CONNECTIONS=32
export NVTE_CPU_OFFLOAD_V1=1
# NCCL chooses network interfaces and RDMA adapters itself. If a node has others too (storage, management), set the
# interface for the rendezvous of the ranks and the prefix of the RDMA adapters of the fabric.
# export NCCL_SOCKET_IFNAME=eth0  # edit
# export NCCL_IB_HCA=mlx5  # edit
exec torchrun --nnodes 2 --nproc-per-node 8 \
  --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$MEGATRON_PATH/pretrain_gpt.py" $(sed '/^#/d' "$here/megatron.args") "$@"
