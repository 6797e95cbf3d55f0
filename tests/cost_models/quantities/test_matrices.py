"""Matrices that Muon orthogonalises: elements and FLOPs restated by hand, and shares against all possible deals."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from meshwright.cost_models.quantities import params
from meshwright.cost_models.quantities.matrices import edge_matrices, layer_matrices
from meshwright.cost_models.quantities.matrix import Matrix
from meshwright.cost_models.quantities.whole_matrices import of_fullest_rank
from meshwright.cost_models.specs.model import MixtureOfExperts
from meshwright.profiles.model.load import load_model, model_names

NAMES = ("q", "k", "v", "o", "q_a", "q_b", "kv_a", "kv_b", "gate", "up", "down", "router", "experts", "shared",
         "shared_gate", "q_gate", "latent", "mixer_in", "mixer_out", "index_q", "index_k", "index_weights",
         "mixer_query_down", "mixer_query_up", "mixer_key", "mixer_out_groups", "mixer_entries", "mixer_index",
         "mixer_select", "mixer_step", "mixer_low_rank_in", "mixer_low_rank",
         "streams", "mixer_cell", "augmented", "layer_input")  # fmt: skip


@pytest.mark.parametrize("name", model_names())
def test_a_layers_matrices_are_all_of_it_that_has_two_dimensions(name: str) -> None:
    model, _ = load_model(name)
    for kind in model.kinds:
        counts = params.layer_parameters(model, kind)
        block = kind.feed_forward
        biases = 0
        # Norms and scales of Gemma 3n's streams, low-rank products and inputs of layers: vectors.
        vectors = model.hidden * (2 * model.alternates + (kind.augmented_rank > 0) + (model.layer_inputs is not None))
        if isinstance(block, MixtureOfExperts) and block.expert_bias:
            biases = block.experts * (block.expert_inner * (2 if block.gated else 1) + model.hidden)
        expected = sum(counts.get(part, 0) for part in NAMES) - biases - vectors
        matrices = list(layer_matrices(model, kind))
        assert sum(matrix.elements * number for matrix, number in matrices) == expected
        of_experts = sum(matrix.elements * number for matrix, number in matrices if matrix.expert)
        assert of_experts == counts.get("experts", 0) - biases


def test_the_work_on_matrices_of_llama_3_8b() -> None:
    model, _ = load_model("llama-3-8b")
    flops = {matrix.parts: matrix.flops for matrix, _ in layer_matrices(model, model.kinds[0])}

    def by_hand(m: int, n: int) -> int:  # m <= n
        return 5 * (2 * m * m * n + 2 * m**3 + 2 * m * m * n)

    assert flops == {
        ((4096, 4096), (1024, 4096), (1024, 4096)): by_hand(4096, 4096) + 2 * by_hand(1024, 4096),
        ((4096, 4096),): by_hand(4096, 4096),
        ((28672, 4096),): by_hand(4096, 28672),
        ((4096, 14336),): by_hand(4096, 14336),
    }


def test_the_matrices_of_kimi_k2() -> None:
    model, _ = load_model("kimi-k2")
    routed = dict(layer_matrices(model, model.kinds[model.pattern[-1]]))
    assert {(matrix.parts[0], number) for matrix, number in routed.items() if matrix.expert} == {
        ((4096, 7168), 384), ((7168, 2048), 384)}  # fmt: skip
    whole_under_tp = {matrix.parts[0] for matrix in routed if not matrix.split}
    assert whole_under_tp == {(384, 7168), (1536, 7168), (576, 7168)}  # router, and down projections of latents
    assert {matrix.parts[0] for matrix in routed if matrix.split and not matrix.expert} == {
        (12288, 1536), (16384, 512), (7168, 8192), (4096, 7168), (7168, 2048)}  # fmt: skip


def test_adam_updates_token_table_and_head_only() -> None:
    tied, untied, positions = (load_model(name)[0] for name in ("gemma-2b", "deepseek-v3", "gpt2"))
    table = Matrix(((tied.vocab, tied.hidden),), orthogonalised=False)
    assert table.flops == 0
    assert edge_matrices(tied) == (((table, 1),), (), (), ((table, 1),))
    embedding, head, prediction, copy = edge_matrices(untied)
    assert embedding == head == copy
    assert [matrix.parts for matrix, _ in prediction] == [((7168, 14336),)]
    assert [matrix.orthogonalised for matrix, _ in edge_matrices(positions)[0]] == [False, True]


def best_deal(costs: list[float], ranks: int) -> float:
    """The least that the fullest rank has, of all deals."""
    deals = itertools.product(range(ranks), repeat=len(costs))
    return min(max(sum(cost for cost, to in zip(costs, deal, strict=True) if to == rank) for rank in range(ranks))
               for deal in deals)  # fmt: skip


def share(costs: list[float], ranks: int, *, whole: bool = True) -> float:
    sizes, numbers = np.unique(costs, return_counts=True)
    columns = (sizes[:, None].astype(float), numbers[:, None].astype(float))
    return float(of_fullest_rank(*columns, np.array([ranks]), whole=whole)[0])


def test_the_fullest_rank_has_the_least_of_any_deal_at_most() -> None:
    rng = random.Random(0)
    exact = 0
    for _ in range(150):
        ranks = rng.randint(1, 4)
        costs = [float(rng.choice([1, 2, 3, 7])) for _ in range(rng.randint(1, 6))]
        least, best = share(costs, ranks), best_deal(costs, ranks)
        assert sum(costs) / ranks <= least + 1e-9
        assert share(costs, ranks, whole=False) == pytest.approx(sum(costs) / ranks)
        assert least <= best + 1e-9
        assert best <= 4 / 3 * least + 1e-9
        assert share(costs, ranks + 1) <= least + 1e-9
        exact += least == best
    assert exact > 120


@pytest.mark.parametrize(("number", "ranks", "most"), [(8, 4, 2), (9, 4, 3), (3, 4, 1), (96, 64, 2), (5, 1, 5)])
def test_matrices_of_one_size_are_shared_exactly(number: int, ranks: int, most: int) -> None:
    assert share([3.0] * number, ranks) == 3.0 * most


