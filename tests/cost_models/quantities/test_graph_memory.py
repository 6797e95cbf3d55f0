"""Memory of CUDA graphs: no graph costs nothing, every graph something or nothing, and the bytes by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from meshwright.cost_models.cuda_graphs import CUDA_GRAPHS, GRAPH_CODE
from meshwright.cost_models.quantities.device_memory import BUFFERS, DeviceMemory
from meshwright.cost_models.quantities.graph_memory import TOKEN_BYTES
from meshwright.cost_models.quantities.graph_parts import part_of_product
from meshwright.cost_models.quantities.moments import IN_LAYER
from meshwright.cost_models.step import reserved_memory
from meshwright.profiles.model.load import load_model

from ..random_cases import SLACK, case_named, cases, check, draw, ledger_of, seeds, thorough, with_column
from .test_moments import SEQ, built

H, F, Q, KV = 4096, 14336, 4096, 2048  # Llama-3.1-8B: hidden, feed-forward, queries, keys and values
BOUNDARY = 2 * SEQ * H  # bytes of a layer's input


def total(memory: DeviceMemory, j: int) -> np.ndarray:
    return np.asarray(sum(memory.buffers(j).values()))


@given(cases, seeds)
@thorough(40)
def test_graphs_never_lower_memory_and_none_costs_nothing(name: str, seed: int) -> None:
    """Every value beside none, of the same layouts, on every device, with the driver's bytes."""
    case = case_named(name)
    columns = with_column(draw(case, seed), cuda_graphs=GRAPH_CODE["none"])
    code = 1 + seed % (len(CUDA_GRAPHS) - 1)
    graphed = with_column(columns, cuda_graphs=code)
    without, held = DeviceMemory(ledger_of(case, columns)), DeviceMemory(ledger_of(case, graphed))
    for j in range(without.ledger.num_profiles):
        none = without.with_separate_graphs(j)
        assert not none["graphs"].any()
        assert all((none[buffer] == num_bytes).all() for buffer, num_bytes in without.buffers(j).items())
        check(total(held, j) >= total(without, j) * (1 - SLACK), graphed, total(held, j), total(without, j))
        separate = held.with_separate_graphs(j)
        assert set(separate) == set(BUFFERS)
        check(np.isclose(np.sum(list(separate.values()), axis=0), total(held, j), rtol=1e-12), graphed)
        check(separate["graphs"] >= 0, graphed, separate["graphs"])
    driver = [reserved_memory.fullest_stage(memory, case.rates)[0] for memory in (without, held)]
    check(driver[1] >= driver[0] * (1 - SLACK), graphed, *driver)


@pytest.mark.parametrize(("pp", "layers", "flying"), [(1, 32, 1), (4, 8, 4)])
def test_graphs_of_whole_layers_keep_every_boundary_twice(pp: int, layers: int, flying: int) -> None:
    """The output of each layer for each micro-batch in flight, one gradient, and the layer's workspace at the loss."""
    text = f"pp{pp}-dp2{{}}-mbs1-z1-rnone" if pp > 1 else "dp2{}-mbs1-z1-rnone"
    plain, graphed = (DeviceMemory(built(text.format(token), "megatron-core", 64)) for token in ("", "-glayer"))
    first = int(np.argmin(plain.ledger.splits.first[0]))
    outputs = graphed.activations(first)[0, 0] - plain.activations(first)[0, 0]
    assert outputs == pytest.approx(layers * flying * BOUNDARY)
    by_moment = graphed.moments(first)["graphs"][:, 0]
    widest = 2 * SEQ * (2 * F + H)  # gradients of the input and the output of the first product of the block
    others = np.delete(by_moment, IN_LAYER)
    assert others == pytest.approx(np.full(len(others), widest + BOUNDARY))
    assert by_moment[IN_LAYER] == pytest.approx(BOUNDARY)
    kept = graphed.with_separate_graphs(first)["graphs"][0]
    assert kept == pytest.approx(outputs + graphed.buffers(first)["graphs"][0])


def test_graphs_of_attention_keep_its_workspace_beside_that_of_the_rest() -> None:
    """An eager layer uses one after the other."""
    memory = DeviceMemory(built("dp8-g(attn)-mbs1-z1-rnone", "megatron-core", 64))
    kept = memory.moments(0)["graphs"][:, 0]
    assert kept == pytest.approx(np.full(len(kept), 2 * SEQ * (Q + KV + H) + BOUNDARY))


def test_a_graph_of_the_iteration_keeps_the_tokens_of_a_step() -> None:
    """On the first and the last of four stages; 32 micro-batches of one sequence each."""
    memory = DeviceMemory(built("pp4-dp2-gfull-mbs1-z1-rnone", "megatron-core", 64))
    tokens = {j: memory.buffers(j)["graphs"][0] for j in range(memory.ledger.num_profiles)}
    first, last = (int(pick(memory.ledger.splits.first[0])) for pick in (np.argmin, np.argmax))
    assert tokens[first] == tokens[last] == TOKEN_BYTES * 32 * SEQ
    assert not any(num_bytes for j, num_bytes in tokens.items() if j not in (first, last))


def test_graphs_of_a_router_keep_the_output_of_shared_experts_alone() -> None:
    """DeepSeek-V2-Lite has shared experts, Mixtral none. Dense layers have no router."""
    for name, shared in (("deepseek-v2-lite", True), ("mixtral-8x7b", False)):
        model = load_model(name)[0]
        text = "dp8-ep8{}-mbs1-z1-rnone"
        plain, graphed = (DeviceMemory(built(text.format(token), "megatron-core", 64, model))
                          for token in ("", "-g(attn+router+pre)"))  # fmt: skip
        experts = sum(model.kinds[kind].is_moe for kind in model.pattern)
        outputs = graphed.activations(0)[0, 0] - plain.activations(0)[0, 0]
        assert outputs == pytest.approx(shared * experts * 2 * SEQ * model.hidden)
        kept = graphed.buffers(0)["graphs"][0] - (2 + shared) * 2 * SEQ * model.hidden  # without gradients of outputs
        assert kept > 0


@pytest.mark.parametrize(
    ("dispatch", "token", "pinned"),
    [("deduplicated", "-g(attn+router+pre)", True), ("alltoall", "-g(attn+router+pre)", False),
     ("alltoall", "-g(attn+router)", True), ("deduplicated", "-g(attn)", False)],
)  # fmt: skip
def test_a_graph_that_returns_normed_tokens_keeps_them_from_recomputation(
    dispatch: str, token: str, pinned: bool
) -> None:
    model = load_model("mixtral-8x7b")[0]
    text = "dp8-ep8{}-mbs1-z1-rsel(norm)"
    plain, graphed = (DeviceMemory(built(text.format(graphs), "megatron-core", 64, model, ep_dispatch=dispatch))
                      for graphs in ("", token))  # fmt: skip
    more = graphed.activations(0)[0, 0] - plain.activations(0)[0, 0]
    assert more == pytest.approx(pinned * model.num_layers * 2 * SEQ * model.hidden)


def test_products_are_in_the_part_that_they_belong_to() -> None:
    """Every product of a layer is known; those of a dense block and of shared experts have the same names."""
    for name in ("llama-3.1-8b", "deepseek-v2-lite"):
        tables = built("dp8-mbs1-z1-rnone", "megatron-core", 64, replace(load_model(name)[0])).tables
        for kind in range(tables.problem.num_kinds):
            layer = tables.problem.model.kinds[kind]
            parts = {gemm.name: part_of_product(gemm.name, layer) for gemm in tables.operations[kind].gemms}
            block = {"up", "down", "router", "experts up", "experts down"}
            assert {part for gemm, part in parts.items() if gemm not in block} == {"attention"}
            expected = {"router", "experts", "shared"} if layer.is_moe else {"mlp"}
            assert {part for gemm, part in parts.items() if gemm in block} == expected
