#!/bin/sh
# pp2-dp8-ep8-mbs2-z1-rnone-oopt: qwen3-30b-a3b on 2 x 8 h100-sxm-80gb, 8.8 s per step predicted
# Plan c890858725b7, layout 1. Written by meshwright 0.1.0; options checked against DeepSpeed 0.19.8 (pypi).
# Starts the ranks of one node. On every node:
#   TRAIN_SCRIPT=... MASTER_ADDR=<host of node 0> NODE_RANK=<0..1> sh launch.sh
set -euf
here=$(cd "$(dirname "$0")" && pwd)
: "${TRAIN_SCRIPT:?must be your training script, which calls deepspeed.initialize}"
NODE_RANK=${NODE_RANK:-0} MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-29500}
# NCCL chooses network interfaces and RDMA adapters itself. If a node has others too (storage, management), set the
# interface for the rendezvous of the ranks and the prefix of the RDMA adapters of the fabric.
# export NCCL_SOCKET_IFNAME=eth0  # edit
# export NCCL_IB_HCA=mlx5  # edit
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
exec torchrun --nnodes 2 --nproc-per-node 8 \
  --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$TRAIN_SCRIPT" --deepspeed_config "$here/ds_config.json" "$@"
