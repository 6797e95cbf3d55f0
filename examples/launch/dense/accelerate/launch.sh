#!/bin/sh
# dp16-mbs1-z3-rnone: llama-3.1-8b on 2 x 8 h100-sxm-80gb, 15.4 s per step predicted
# Plan 85ce0a916264, layout 1. Written by meshwright 0.1.0; options checked against accelerate 1.15.0 (pypi).
# Starts the ranks of one node. On every node:
#   MASTER_ADDR=<host of node 0> NODE_RANK=<0..1> sh launch.sh --model <folder with config.json>
set -euf
here=$(cd "$(dirname "$0")" && pwd)
: "${TRAIN_SCRIPT:=$here/train.py}"
NODE_RANK=${NODE_RANK:-0} MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-29500}
# NCCL chooses network interfaces and RDMA adapters itself. If a node has others too (storage, management), set the
# interface for the rendezvous of the ranks and the prefix of the RDMA adapters of the fabric.
# export NCCL_SOCKET_IFNAME=eth0  # edit
# export NCCL_IB_HCA=mlx5  # edit
exec accelerate launch --config_file "$here/accelerate.yaml" --machine_rank "$NODE_RANK" \
  --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" "$TRAIN_SCRIPT" "$@"
