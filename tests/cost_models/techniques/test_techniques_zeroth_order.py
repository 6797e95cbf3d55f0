"""Training without gradients: bytes and seconds by hand, through `evaluate`."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.planner.document.candidate import Candidate
from meshwright.planner.studies.systems.without_gradients import zo2_gib

from meshwright.errors import InputError

from .test_techniques import priced, shown, single

HIDDEN, LAYERS, INNER, VOCAB, TOKENS = 1024, 6, 4096, 32000, 512
MODEL: dict[str, Any] = {"name": "plain", "hidden": HIDDEN, "layers": LAYERS, "heads": 16, "ffn_hidden": INNER,
                         "vocab": VOCAB, "max_positions": TOKENS, "gated_mlp": False}  # fmt: skip
LAYER = 4 * HIDDEN**2 + 2 * HIDDEN * INNER
TABLE = VOCAB * HIDDEN


def of(technique: str | None, layout_id: str = "dp16-mbs1-z0-rnone", **asked: Any) -> Candidate:
    return priced(layout_id, technique and {technique: {}},
                  **{"model": MODEL, "seq_len": TOKENS, "global_batch": 16, "stack": "generic", "cluster": single(100),
                     **asked})  # fmt: skip


def seconds(candidate: Candidate, *names: str) -> float:
    return sum(term.seconds for term in candidate.terms if term.name in names)


def test_memory_is_weights_and_what_one_of_them_needs_while_it_is_updated() -> None:
    memory = of("just-one-byte").memory[0]

    assert memory.weights_bytes == pytest.approx(2 * (LAYERS * LAYER + 2 * TABLE), rel=2e-3)  # norms are the rest
    assert memory.gradients_bytes == memory.optimizer_bytes == memory.activations_bytes == 0
    assert memory.workspace_bytes == pytest.approx(3 * 2 * TABLE, rel=1e-4)  # larger than any matrix of a layer


def test_offloaded_weights_leave_two_layers_and_both_ends() -> None:
    memory = of("distzo2").memory[0]

    assert memory.weights_bytes == pytest.approx(2 * (2 * LAYER + 2 * TABLE), rel=2e-3)
    assert memory.host_bytes == pytest.approx(2 * (LAYERS * LAYER + 2 * TABLE), rel=2e-3)


def test_scores_that_no_freed_block_holds_get_blocks_of_their_own() -> None:
    """OPT-13B: 40 heads score 2,048 tokens, 4 bytes each in fp32: more than a block of the update of a table holds, and
    the scores in fp16 fit into two of them. In OPT-1.3B no block holds any."""
    square = 2048**2
    for hidden, layers, heads, beside in ((5120, 40, 40, 4 * 40 * square), (2048, 24, 32, 4 * 2 * 2048 * 50272)):
        model = {"hidden": hidden, "layers": layers, "heads": heads, "ffn_hidden": 4 * hidden, "vocab": 50272,
                 "max_positions": 2048}  # fmt: skip
        asked = {"model": MODEL | model, "seq_len": 2048, "dtype": "fp16"}
        fused, unfused = (of("distzo2", "dp16-mbs1-z0-rnone-fp16", **asked, stack=stack).memory[0].device_bytes
                          for stack in ("generic", "transformers-4.28"))  # fmt: skip
        # The fullest moment is a layer's with its widest product, where its scores are more than an update holds.
        in_layer, updates = 8 * heads * square + 2 * 2048 * 5 * hidden, 4 * 2 * hidden * 50272
        assert unfused - fused == pytest.approx(beside + max(in_layer - updates, 0), rel=0.05)


def test_two_forward_passes_are_all_products() -> None:
    """A step with gradients has the work of three forward passes."""
    plain, without = of(None), of("just-one-byte")

    assert seconds(without, "matmul") == pytest.approx(2 / 3 * seconds(plain, "matmul"), rel=0.05)


def test_every_direction_is_updated_on_every_machine() -> None:
    """6 tensors of the size of the weights for each of 16 machines."""
    step, offloaded = of("just-one-byte"), of("distzo2")
    tensor_s = seconds(step, "optimizer") / (16 * 6)

    at_peak_s = 2 * (LAYERS * LAYER + 2 * TABLE) / 3.35e12  # bandwidth of the data sheet
    assert 1 < tensor_s / at_peak_s < 1.4
    # Weights on the host are updated when they come: 13 tensors more in the passes.
    assert seconds(offloaded, "optimizer") == 0
    more_s = seconds(offloaded, "norms, elementwise") - seconds(step, "norms, elementwise")
    assert more_s == pytest.approx(13 * tensor_s, rel=1e-6)


def test_slopes_alone_are_sent() -> None:
    """15 bytes of others: on fast links latency alone is left."""
    fast, slow, slower = (shown(of("just-one-byte", cluster=single(gbit))) for gbit in (100, 1e-6, 1e-7))

    assert fast < 1e-3
    assert 1 < slow / (15 * 8 / 1e3) < 3
    assert slower / slow == pytest.approx(10, rel=0.05)


def test_sharing_gpus_divide_the_copies() -> None:
    alone, sharing = (of("distzo2", f"dp16-mbs1-z{zero}-rnone", cluster="dgx-a100-80gb:2") for zero in (0, 3))

    assert sharing.memory[0].host_bytes == pytest.approx(alone.memory[0].host_bytes / 16)
    assert sharing.memory[0].weights_bytes == alone.memory[0].weights_bytes
    assert seconds(sharing, "offload, exposed") < seconds(alone, "offload, exposed")


@pytest.mark.parametrize("asked", [{"lora": {"rank": 8}}, {"last_layers": 2}])
def test_adapters_and_frozen_layers_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="needs all weights to train"):
        of("distzo2", train=asked)


@pytest.mark.parametrize("layout_id", ["pp2-dp8-mbs1-z0-rnone", "dp16-mbs1-z0-rfull", "dp16-mbs1-z0-rnone-oact"])
def test_what_needs_a_backward_pass_is_refused(layout_id: str) -> None:
    with pytest.raises(InputError, match="no pipeline, and nothing that is recomputed or offloaded"):
        of("just-one-byte", layout_id)


@pytest.mark.parametrize(("sizes", "gib"), [((5120, 40, 40), 6.2), ((12288, 96, 96), 18.2)])
def test_golden_g17(sizes: tuple[int, int, int], gib: float) -> None:
    """ZO2 on OPT-13B and OPT-175B (FORMULAS.md, G17)."""
    assert zo2_gib(sizes, neutral=False) == pytest.approx(gib, rel=0.03)
