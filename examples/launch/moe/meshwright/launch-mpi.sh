#!/bin/sh
# dp16-mbs8-z3-rfull: qwen3-30b-a3b on 2 x 8 h100-sxm-80gb, 9.61 s per step predicted
# Plan 8bb82c907850, layout 1. Written by meshwright 0.1.0.
# In this folder, which every node sees: sh launch-mpi.sh --steps 100 --data tokens/
set -eu
cd "$(dirname "$0")"
MASTER_ADDR=$(sed '/^#/d' hostfile | head -n 1 | cut -d ' ' -f 1)
export MASTER_ADDR MASTER_PORT="${MASTER_PORT:-29500}"
exec mpirun --hostfile hostfile --map-by ppr:1:node --bind-to none -np 2 \
  -x MASTER_ADDR -x MASTER_PORT -x PATH \
  sh -c 'export NODE_RANK="$OMPI_COMM_WORLD_RANK"; exec sh launch.sh "$@"' sh "$@"
