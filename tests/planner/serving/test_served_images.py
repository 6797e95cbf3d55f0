"""Plans that serve models that see: their images in the plan, the tiers of AI Flow, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from meshwright.planner.api import plan_serving
from meshwright.planner.document.reading import load_serving_plan
from meshwright.planner.explain.serving import explain_serving
from meshwright.planner.targets.engines.emit import emit_serving

from meshwright.errors import InputError, UnsupportedError

from ...snapshots import run_here

FIELDS: dict[str, Any] = {"model": "gemma-3-12b", "cluster": "1xh100-sxm-80gb", "input": 300, "output": 50,
                          "images": 1, "rate": "1/s", "top": 1, "fix": {"chunk_tokens": 2048}}  # fmt: skip
TIERS = "ai-flow:uplink_mbit_per_s=3,device_tflop_per_s=10"


def test_images_take_time_and_room() -> None:
    with_images, without = plan_serving(**FIELDS).best, plan_serving(**{**FIELDS, "images": None}).best
    assert with_images.ttft_s > without.ttft_s + 0.005
    assert with_images.pools[0].cache_sequences < without.pools[0].cache_sequences
    assert with_images.simulated is not None
    assert with_images.simulated.ttft_s.mean == pytest.approx(with_images.ttft_s, rel=0.15)
    assert with_images.pools[0].tower is None


def test_what_no_field_states_of_images_is_an_assumption() -> None:
    (stated,) = (it for it in plan_serving(**{**FIELDS, "prefix_hit": 0.5}).assumptions if "images" in it)
    assert "in proportion to its tokens" in stated
    assert stated.endswith("as large a share of them as of the tokens is found in the cache")
    assert not any("images" in it for it in plan_serving(**{**FIELDS, "images": None}).assumptions)


def test_parts_without_a_price_in_serving_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="gemma-3n-e4b has embeddings of each layer or streams of AltUp"):
        plan_serving(model="gemma-3n-e4b", cluster="1xh100-sxm-80gb", input=300, output=50, rate="1/s")


def test_tiers_are_on_the_screen_and_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    asked = ("--model", "gemma-3-12b", "--cluster", "1xh100-sxm-80gb", "--input", "300", "--output", "50", "--images",
             "1", "--rate", "1/s", "--fix", "chunk_tokens=2048")  # fmt: skip
    screen = run_here("plan", "--workload", "serve", *asked, "--technique", TIERS, "-o", str(path)).out
    assert "of its 29 pieces 29 on the device, 0 at the edge, 0 here" in " ".join(screen.split())
    plan = load_serving_plan(path)
    parts = {part.name: part.ttft_s for part in explain_serving(plan).parts}
    assert sum(parts.values()) == pytest.approx(plan.best.ttft_promised_s, rel=1e-6)
    # 256 tokens of 3,840 in 16 bits over 3 Mb/s, 5.45 TFLOP at 10 TFLOP/s, 20 ms.
    assert parts["device and edge"] == pytest.approx(256 * 3840 * 16 / 3e6 + 0.545 + 0.02, rel=0.01)
    assert plan.best.simulated is not None
    assert plan.best.simulated.ttft_s.mean == pytest.approx(plan.best.ttft_s, rel=0.05)
    with pytest.raises(UnsupportedError, match="ai-flow: no runtime"):
        emit_serving(plan, "vllm")


def test_sglang_is_told_to_see() -> None:
    plans = (plan_serving(**{**FIELDS, "images": images}, target="sglang") for images in (1, None))
    seen, text = (emit_serving(it, "sglang").files["serve.sh"] for it in plans)
    assert "--enable-multimodal" in seen
    assert "--enable-multimodal" not in text


@pytest.mark.parametrize(("changes", "message"), [
    ({"images": None, "technique": TIERS}, "ai-flow needs a model that sees images, and some in every request"),
    ({"model": "llama-3.1-8b"}, "images: no vision tower of llama-3.1-8b is described"),
    ({"input": 256}, "images: 1 x 256 tokens = 256, and a prompt has 256 with its text"),
    ({"model": "qwen3-vl-8b"}, "images: qwen3-vl-8b takes images of any size, and none is given"),
    ({"technique": "ai-flow:uplink_mbit_per_s=-1"}, "uplink_mbit_per_s is -1, must be in 0 or 0.001 to"),
    ({"technique": "ai-flow:uplink=3"}, "ai-flow has no knob `uplink`"),
    ({"technique": "ai-flow:backhaul_mbit_per_s=0"}, "backhaul_mbit_per_s is 0, must be in 0.001 to"),
])  # fmt: skip
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_serving(**{**FIELDS, **changes})
