"""The hint of a request that fits nowhere: each remedy it names fits when it is planned."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.planner import api

from meshwright.errors import NoFeasibleLayoutError

SMALL: dict[str, Any] = {"cluster": "1xrtx-4090", "seq_len": 2048, "global_batch": 16}
LARGE: dict[str, Any] = {"model": "llama-3.1-405b", "seq_len": 4096, "global_batch": 64}


def hint_of(**request: Any) -> str:
    with pytest.raises(NoFeasibleLayoutError) as caught:
        api.plan(**request)
    return str(caught.value.hint)


def test_other_targets_that_fit_are_named_by_name() -> None:
    request = {**SMALL, "model": "llama-3.2-1b", "global_batch": 64}
    hint = hint_of(**request, target="accelerate")
    assert hint == "meshwright and deepspeed have layouts that fit: plan with `--target meshwright`"
    for name in ("meshwright", "deepspeed"):
        plan = api.plan(**request, target=name)
        assert plan.best.memory[0].device_bytes < plan.resolved["memory_bytes"]


def test_adapters_fit_where_all_weights_do_not() -> None:
    """The weights of 14B in bf16 are larger than the GPU, those in 4 bits are not."""
    hint = hint_of(**SMALL, model="qwen2.5-14b", target="trl")
    assert "`--lora 16::nf4` fits on these" in hint
    assert api.plan(**SMALL, model="qwen2.5-14b", target="trl", lora="16::nf4").best.memory[0].device_bytes < 24 * 2**30
    with pytest.raises(NoFeasibleLayoutError):
        api.plan(**SMALL, model="qwen2.5-14b", target="trl", lora="16")


def test_the_number_of_gpus_is_enough_and_adapters_have_a_target_that_trains_them() -> None:
    hint = hint_of(**LARGE, cluster="8xh100-sxm-80gb", target="megatron")
    assert hint.startswith("64 GPUs are enough (est. ")
    assert "`--lora 16::nf4 --target trl` fits on these" in hint
    api.plan(**LARGE, cluster="dgx-h100:8", target="megatron")


def test_no_adapters_for_models_that_take_none_and_runs_that_have_some() -> None:
    assert "--lora" not in hint_of(**SMALL, model="llama-3.1-70b", lora=16)
    small = {"cluster": "1xrtx-4090", "global_batch": 256, "max_memory": "1GiB"}
    assert "--lora" not in hint_of(**small, model="dit-xl-2-256", images="1@256x256", target="any")
