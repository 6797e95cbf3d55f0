"""A fixed optimizer on the host that has no room for it: the error has the arithmetic and the number of GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.planner import api

from meshwright.errors import NoFeasibleLayoutError

CLUSTER = {"groups": [{"name": "small", "gpu": "h100-sxm-80gb", "gpus_per_node": 4, "count": 1,
                       "host_memory": "16 GiB"}]}  # fmt: skip
ASKED: dict[str, Any] = {"model": "llama-3.2-1b", "cluster": CLUSTER, "seq_len": 1024, "global_batch": 4,
                         "target": "any"}  # fmt: skip


def test_the_optimizer_has_no_room_on_the_host() -> None:
    with pytest.raises(NoFeasibleLayoutError, match="the optimizer has no room on the host") as error:
        api.plan(None, **ASKED, fix=["offload=opt"])

    details = error.value.details
    assert details["host_bytes"] > details["host_memory_bytes"]
    assert "1,235,814,400 parameters x 24 bytes / 4 GPUs" in str(error.value.message)
    assert error.value.hint == "leave out `--fix offload=opt`, or take at least 8 such GPUs"
    assert "opt" not in api.plan(None, **ASKED).best.layout_id
