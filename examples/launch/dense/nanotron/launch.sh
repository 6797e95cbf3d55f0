#!/bin/sh
# tp4-dp4-mbs2-z0-rnone: llama-3-8b on 2 x 8 h100-sxm-80gb, 17.1 s per step predicted
# Plan 200b0db05bfa, layout 1. Written by meshwright 0.1.0; options checked against nanotron 0.5 (2411b022).
# Starts the ranks of one node. On every node:
#   NANOTRON_PATH=... MASTER_ADDR=<host of node 0> NODE_RANK=<0..1> sh launch.sh
set -euf
here=$(cd "$(dirname "$0")" && pwd)
: "${NANOTRON_PATH:?must be a checkout of nanotron, which has run_train.py}"
NODE_RANK=${NODE_RANK:-0} MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-29500}
export CUDA_DEVICE_MAX_CONNECTIONS=1
# NCCL chooses network interfaces and RDMA adapters itself. If a node has others too (storage, management), set the
# interface for the rendezvous of the ranks and the prefix of the RDMA adapters of the fabric.
# export NCCL_SOCKET_IFNAME=eth0  # edit
# export NCCL_IB_HCA=mlx5  # edit
exec torchrun --nnodes 2 --nproc-per-node 8 \
  --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$NANOTRON_PATH/run_train.py" --config-file "$here/nanotron.yaml" "$@"
