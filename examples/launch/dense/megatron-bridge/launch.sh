#!/bin/sh
# dp16-gfull-mbs1-z2-rnone: llama-3.1-8b on 2 x 8 h100-sxm-80gb, 13.6 s per step predicted
# Plan 0ba9e4e37c50, layout 1. Written by meshwright 0.1.0; options checked against Megatron-Bridge 0.6.0 (51885cf1).
# Starts the ranks of one node. On every node:
#   MASTER_ADDR=<host of node 0> NODE_RANK=<0..1> sh launch.sh dataset.data_path=... tokenizer.tokenizer_type=HuggingFaceTokenizer tokenizer.tokenizer_model=...
set -euf
here=$(cd "$(dirname "$0")" && pwd)
NODE_RANK=${NODE_RANK:-0} MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-29500}
unset CUDA_DEVICE_MAX_CONNECTIONS
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,graph_capture_record_stream_reuse:True
export NCCL_GRAPH_REGISTER=0
# NCCL chooses network interfaces and RDMA adapters itself. If a node has others too (storage, management), set the
# interface for the rendezvous of the ranks and the prefix of the RDMA adapters of the fabric.
# export NCCL_SOCKET_IFNAME=eth0  # edit
# export NCCL_IB_HCA=mlx5  # edit
exec torchrun --nnodes 2 --nproc-per-node 8 \
  --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$here/bridge_plan.py" "$@"
