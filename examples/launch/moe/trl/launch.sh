#!/bin/sh
# dp16-mbs4-z3-rfull: qwen3-30b-a3b on 2 x 8 h100-sxm-80gb, 9.43 s per step predicted
# Plan 749b13bc7714, layout 1. Written by meshwright 0.1.0; options checked against TRL 1.16.0 (pypi).
# Starts the ranks of one node. On every node:
#   MASTER_ADDR=<host of node 0> NODE_RANK=<0..1> sh launch.sh --model_name_or_path <model> --dataset_name <data> --learning_rate <rate>
set -euf
here=$(cd "$(dirname "$0")" && pwd)
NODE_RANK=${NODE_RANK:-0} MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-29500}
# NCCL chooses network interfaces and RDMA adapters itself. If a node has others too (storage, management), set the
# interface for the rendezvous of the ranks and the prefix of the RDMA adapters of the fabric.
# export NCCL_SOCKET_IFNAME=eth0  # edit
# export NCCL_IB_HCA=mlx5  # edit
exec accelerate launch --config_file "$here/ranks.yaml" --machine_rank "$NODE_RANK" \
  --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" \
  --module trl.scripts.sft --config "$here/sft.yaml" "$@"
