"""Found by the ranks of a training without GPUs: accelerate and transformers take CPU ranks over gloo for GPUs.

accelerate 1.15 counts CPU ranks as MULTI_CPU and never enters FSDP there (state.py), though fully_shard runs on CPUs.
"""

import os

if "LOCAL_RANK" in os.environ and "ACCELERATE_MIXED_PRECISION" in os.environ:
    import accelerate.state as state
    import transformers.utils as utils

    state.PartialState._prepare_backend = lambda *given: ("gloo", state.DistributedType.MULTI_GPU)
    setattr(utils, "is_torch_bf16_gpu_available", lambda: True)  # noqa: B010
