"""pp2-dp8-ep8-mbs2-z1-rnone-oopt: qwen3-30b-a3b on 2 x 8 h100-sxm-80gb, 8.8 s per step predicted
Plan c890858725b7, layout 1. Written by meshwright 0.1.0; options checked against DeepSpeed 0.19.8 (pypi).

Settings that ds_config.json lacks. Your script imports them: `import ds_plan`.
"""

PIPELINE_STAGES = 2
TENSOR_PARALLEL = 1
DATA_PARALLEL = 8
RECOMPUTE = False  # every layer in the backward pass: without a pipeline, model.gradient_checkpointing_enable()
SEQUENCE_LENGTH = 4096


def pipeline(layers, layer_class, **more):
    """The model as a PipelineModule: `layers` as DeepSpeed takes them, `layer_class` the name of the decoder layer's
    class, of which every stage gets 24."""
    from deepspeed.pipe import PipelineModule
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    topology = PipeModelDataParallelTopology(
        num_pp=PIPELINE_STAGES, num_mp=TENSOR_PARALLEL, num_dp=DATA_PARALLEL
    )
    return PipelineModule(
        layers=layers, topology=topology, partition_method=f"type:{layer_class}",
        activation_checkpoint_interval=int(RECOMPUTE), **more,
    )
