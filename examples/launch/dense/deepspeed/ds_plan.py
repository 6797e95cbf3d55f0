"""cp2u-dp8-mbs1-z1-rnone: llama-3.1-8b on 2 x 8 h100-sxm-80gb, 14.8 s per step predicted
Plan 6ddafacec8f7, layout 1. Written by meshwright 0.1.0; options checked against DeepSpeed 0.19.8 (pypi).

Settings that ds_config.json lacks. Your script imports them: `import ds_plan`.
"""

PIPELINE_STAGES = 1
TENSOR_PARALLEL = 1
DATA_PARALLEL = 8
RECOMPUTE = False  # every layer in the backward pass: without a pipeline, model.gradient_checkpointing_enable()
SEQUENCE_LENGTH = 8192
