#!/bin/sh
# dp16-sh8-mbs1-z3-rsel(norm+act): llama-3-8b on 2 x 8 h100-sxm-80gb, 16.8 s per step predicted
# Plan 1c99937b4b02, layout 1. Written by meshwright 0.1.0; options checked against MaxText 0.2.4 (e591f30c).
# Starts the ranks of one node. On every node:
#   MASTER_ADDR=<host of node 0> NODE_RANK=<0..1> sh launch.sh steps=100 dataset_type=hf hf_path=...
set -euf
here=$(cd "$(dirname "$0")" && pwd)
: "${XLA_FLAGS:=--xla_gpu_enable_latency_hiding_scheduler=true}"
NODE_RANK=${NODE_RANK:-0} MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-29500}
export NNODES=2
export XLA_CLIENT_MEM_FRACTION=0.90
unset XLA_PYTHON_CLIENT_MEM_FRACTION
# NCCL chooses network interfaces and RDMA adapters itself. If a node has others too (storage, management), set the
# interface for the rendezvous of the ranks and the prefix of the RDMA adapters of the fabric.
# export NCCL_SOCKET_IFNAME=eth0  # edit
# export NCCL_IB_HCA=mlx5  # edit
exec env XLA_FLAGS="$XLA_FLAGS" JAX_COORDINATOR_IP="$MASTER_ADDR" JAX_COORDINATOR_PORT="$MASTER_PORT" NODE_RANK="$NODE_RANK" \
  python3 -m maxtext.trainers.pre_train.train "$here/maxtext.yml" "$@"
