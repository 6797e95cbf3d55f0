#!/bin/sh
# cp2u-dp8-mbs1-z1-rnone: llama-3.1-8b on 2 x 8 h100-sxm-80gb, 14.8 s per step predicted
# Plan 6ddafacec8f7, layout 1. Written by meshwright 0.1.0; options checked against DeepSpeed 0.19.8 (pypi).
# In this folder, which every node sees: sh launch-mpi.sh
set -eu
cd "$(dirname "$0")"
: "${TRAIN_SCRIPT:?must be your training script, which calls deepspeed.initialize}"
MASTER_ADDR=$(sed '/^#/d' hostfile | head -n 1 | cut -d ' ' -f 1)
export MASTER_ADDR MASTER_PORT="${MASTER_PORT:-29500}"
exec mpirun --hostfile hostfile --map-by ppr:1:node --bind-to none -np 2 \
  -x MASTER_ADDR -x MASTER_PORT -x PATH -x TRAIN_SCRIPT \
  sh -c 'export NODE_RANK="$OMPI_COMM_WORLD_RANK"; exec sh launch.sh "$@"' sh "$@"
