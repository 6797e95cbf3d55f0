"""dp16-mbs8-z3-rfull-oopt: qwen3-30b-a3b on 2 x 8 h100-sxm-80gb, 8.36 s per step predicted
Plan c890858725b7, layout 1. Written by meshwright 0.1.0; options checked against DeepSpeed 0.19.8 (pypi).

What ds_config.json cannot say. Your script imports it: `import ds_plan`.
"""

PIPELINE_STAGES = 1
TENSOR_PARALLEL = 1
DATA_PARALLEL = 16
RECOMPUTE = True  # every layer in the backward pass: without a pipeline, model.gradient_checkpointing_enable()
SEQUENCE_LENGTH = 4096
