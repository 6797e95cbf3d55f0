"""A vision tower in the operations, parameters and bytes of the first stage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from meshwright.cost_models.layouts import RECOMPUTE_MODES, Layout, Layouts
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities import vision
from meshwright.cost_models.quantities.even_stages import chunk_sizes, chunk_sizes_beside
from meshwright.cost_models.quantities.flops import model_flops, recomputed_flops
from meshwright.cost_models.quantities.params import table_parameters, total_parameters
from meshwright.cost_models.quantities.stages import EMBEDDING
from meshwright.cost_models.quantities.tables import Tables, build, index_keys
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.cost_models.specs.variants import text_of
from meshwright.cost_models.specs.vision import VisionTower
from meshwright.cost_models.specs.workload import Images, Lora, Workload
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from torch.nn import functional as F

from .kept_bytes import KeptBytes

IMAGES = Images(per_sequence=3, height=512, width=384)
FULL = RECOMPUTE_MODES.index("full")


def model(name: str = "qwen3-vl-8b", layers: int = 4) -> ModelSpec:
    whole = load_model(name)[0]
    return replace(whole, pattern=whole.pattern[:layers])


def problem(spec: ModelSpec | None = None, **how: Any) -> Problem:
    how = {"images": IMAGES, **how}
    return Problem(spec or model(), Workload(seq_len=4096, global_batch=8, **how), load_stack("generic"), 8, 8)


def tables(of: Problem, **layout: int) -> Tables:
    return build(of, index_keys(Layouts.of([Layout(**layout)]))[0])


def tower_of(of: Problem) -> VisionTower:
    assert of.model.tower is not None
    return of.model.tower


def patches(of: Problem) -> int:
    return tower_of(of).patches(IMAGES.height, IMAGES.width)


def of_projector(of: Problem) -> tuple[float, float]:
    """FLOPs of both products of all projectors of Qwen3-VL."""
    tower, tokens = tower_of(of), IMAGES.per_sequence * vision.tokens(tower_of(of), patches(of))
    block, runs = tower.hidden * tower.merge**2, 1 + tower.deepstack
    return 2.0 * runs * tokens * block * block, 2.0 * runs * tokens * block * tower.output


def test_flops_are_those_of_the_images() -> None:
    trained, frozen = problem(), problem(freeze_tower=True)
    forward, backward = trained.flops[:, EMBEDDING]
    assert forward == IMAGES.per_sequence * vision.forward_flops(tower_of(trained), patches(trained))
    first = 2.0 * IMAGES.per_sequence * patches(trained) * 1152 * vision.values_of_patch(tower_of(trained))
    assert backward == 2 * forward - first  # no gradient of pixels
    up, down = of_projector(trained)
    assert tuple(frozen.flops[:, EMBEDDING]) == (forward, 2 * up + 2 * down)
    assert tuple(problem(lora=Lora(rank=8, targets=("q",)), trains_layers=0).flops[:, EMBEDDING]) == (forward, 0.0)
    assert model_flops(trained) - model_flops(problem(text_of(model()), images=None)) == 8 * (forward + backward)


def test_flops_of_windows_are_those_of_their_pairs() -> None:
    """Qwen2.5-VL: 4 of 32 layers attend to whole images. 512 x 384 pixels are 18 x 14 tokens in windows of 4 x 4."""
    of = problem(model("qwen2.5-vl-7b"))
    tower = tower_of(of)
    assert patches(of) == 4 * 18 * 14
    pairs = 16 * (4 * 16 + 2 * 2) * (3 * 16 + 2 * 2)
    forward = of.flops[0, EMBEDDING]
    assert forward == IMAGES.per_sequence * vision.forward_flops(tower, patches(of), pairs)
    cores = 4.0 * 1280 * (4 * patches(of) ** 2 + 28 * pairs)
    products = 32 * 2.0 * patches(of) * (4 * 1280**2 + 3 * 1280 * 3420)
    beside = vision.forward_flops(replace(tower, layers=0, whole=()), patches(of))
    assert forward == pytest.approx(IMAGES.per_sequence * (cores + products + beside), rel=1e-12)
    seen = {core.context for core in tables(of).operations[EMBEDDING].cores}
    assert seen == {patches(of), round(pairs / patches(of))}


def test_full_recomputation_repeats_the_layers_of_a_trained_tower() -> None:
    layout = Layout(dp=8, recompute=FULL)
    without = recomputed_flops(problem(text_of(model()), images=None), layout)
    tower, count = tower_of(problem()), IMAGES.per_sequence * patches(problem())
    of_layers = tower.layers * (2.0 * count * (4 * 1152**2 + 2 * 1152 * 4304) + 4.0 * count * patches(problem()) * 1152)
    assert recomputed_flops(problem(), layout) - without == pytest.approx(8 * of_layers, rel=1e-12)
    assert recomputed_flops(problem(freeze_tower=True), layout) == without
    # It repeats the whole tower also where some layers of each stage are recomputed, and none where stages say so.
    some = replace(layout, recompute_layers=1)
    of_text = recomputed_flops(problem(text_of(model()), images=None), some)
    assert recomputed_flops(problem(), some) - of_text == pytest.approx(8 * of_layers, rel=1e-12)
    assert recomputed_flops(problem(), layout, [4.0, 0.0]) == without


@pytest.mark.parametrize(("stack", "repeated"), [("torchtitan", 0), ("megatron-core", 1)])
def test_a_recomputation_that_stops_early_skips_the_last_product(stack: str, repeated: int) -> None:
    """Llama-3.1-8B: projections of queries, keys, values and output, attention's causal half, three matrices."""
    of = Problem(load_model("llama-3.1-8b")[0], Workload(seq_len=8192, global_batch=64), load_stack(stack), 8, 8)
    products = 2.0 * 8192 * 4096 * (4096 + 2 * 1024 + 4096 + (2 + repeated) * 14336)
    wanted = 64 * 32 * (products + 2.0 * 8192**2 * 4096)
    assert recomputed_flops(of, Layout(dp=8, recompute=FULL)) == pytest.approx(wanted, rel=1e-12)


def test_a_projector_trains_above_a_frozen_tower() -> None:
    trained, frozen = (tables(problem(freeze_tower=freezes), tp=2, dp=4).operations[EMBEDDING]
                       for freezes in (False, True))  # fmt: skip
    norms = [float(moved.backward_bytes[0]) for ops in (trained, frozen) for moved in ops.traffic
             if moved.name == "projector norm"]  # fmt: skip
    assert norms[0] == norms[1] > 0
    reduced = [exchange for exchange in frozen.exchanges if exchange.backward_calls]
    assert [exchange.backward_calls for exchange in reduced] == [1 + tower_of(problem()).deepstack]


@pytest.mark.parametrize("name", ["qwen3-vl-8b", "qwen3-vl-30b-a3b"])
def test_parameters_of_a_rank(name: str) -> None:
    of = problem(model(name))
    every = vision.parameters(tower_of(of))
    whole, quarter = (tables(of, tp=tp, dp=8 // tp).parameters["dense"][EMBEDDING, 0] for tp in (1, 4))
    table = table_parameters(of.model)
    assert whole == table + sum(every.values())
    assert total_parameters(of.model) - total_parameters(text_of(of.model)) == sum(every.values())
    replicated = sum(vision.replicated(tower_of(of)).values())
    assert quarter == (table + sum(every.values()) - replicated) / 4 + replicated
    assert 0.005 < replicated / sum(every.values()) < 0.01  # positions, norms, biases


def test_a_frozen_tower_trains_its_projector_alone() -> None:
    of = problem(freeze_tower=True)
    every = vision.parameters(tower_of(of))
    trained = tables(of).parameters["trained_dense"][EMBEDDING, 0]
    assert trained == table_parameters(of.model) + every["merger"] + every["deepstack"]
    adapters = problem(lora=Lora(rank=8, targets=("q",)), trains_layers=0)
    assert tables(adapters).parameters["trained_dense"][EMBEDDING, 0] == 0


def test_saved_bytes_of_a_layer_are_those_that_torch_keeps() -> None:
    """A pre-norm layer of torch modules in bf16 on the CPU, whose flash kernel keeps the sums of its scores."""
    tower, n, heads = tower_of(problem()), 64, 16
    norms = [torch.nn.LayerNorm(1152).bfloat16() for _ in range(2)]
    qkv, out, up, down = (torch.nn.Linear(i, o).bfloat16()
                          for i, o in ((1152, 3456), (1152, 1152), (1152, 4304), (4304, 1152)))  # fmt: skip
    kept = KeptBytes(*norms, qkv, out, up, down)

    with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        x = torch.randn(n, 1152, dtype=torch.bfloat16, requires_grad=True)
        q, k, v = (part.view(1, n, heads, 72).transpose(1, 2) for part in qkv(norms[0](x)).chunk(3, dim=-1))
        y = x + out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, 1152))
        y + down(F.gelu(up(norms[1](y)), approximate="tanh"))
    small = replace(tower, least_pixels=0)
    of = problem(replace(model(), tower=small), images=Images(per_sequence=1, height=128, width=128))
    assert small.patches(128, 128) == n
    ops = tables(of).operations[EMBEDDING]
    of_layers = sum(float(np.asarray(saved.num_bytes)[0]) for saved in ops.saved if saved.tag)
    assert of_layers / tower.layers == pytest.approx(kept.num_bytes, rel=0.01)


def test_saved_bytes_of_a_layer_with_a_gate_are_those_that_torch_keeps() -> None:
    """The same for Qwen2.5-VL, by modules whose activation and product are two kernels; norms have no bias."""
    n, heads, h, f = 64, 16, 1280, 3420
    norms = [torch.nn.LayerNorm(h, bias=False).bfloat16() for _ in range(2)]
    qkv, out, gate, up, down = (torch.nn.Linear(i, o).bfloat16()
                                for i, o in ((h, 3 * h), (h, h), (h, f), (h, f), (f, h)))  # fmt: skip
    kept = KeptBytes(*norms, qkv, out, gate, up, down)
    with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        x = torch.randn(n, h, dtype=torch.bfloat16, requires_grad=True)
        q, k, v = (part.view(1, n, heads, 80).transpose(1, 2) for part in qkv(norms[0](x)).chunk(3, dim=-1))
        y = x + out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, h))
        normed = norms[1](y)
        y + down(F.silu(gate(normed)) * up(normed))
    stack = replace(load_stack("generic"), fused_activation=False)
    work = Workload(seq_len=4096, global_batch=8, images=Images(per_sequence=1, height=112, width=112))
    of = Problem(model("qwen2.5-vl-7b"), work, stack, 8, 8)
    assert tower_of(of).patches(112, 112) == n
    ops = tables(of).operations[EMBEDDING]
    of_layers = sum(float(np.asarray(saved.num_bytes)[0]) for saved in ops.saved if saved.tag)
    assert of_layers / tower_of(of).layers == pytest.approx(kept.num_bytes, rel=0.01)


def test_full_recomputation_keeps_the_inputs_of_layers() -> None:
    of = problem()
    whole, little = (float(tables(of, recompute=mode).saved(mode, 0)[EMBEDDING, 0]) for mode in (0, FULL))
    inputs = 27 * 2 * 1152 * IMAGES.per_sequence * patches(of)
    beside = sum(float(s.num_bytes[0]) for s in tables(of).operations[EMBEDDING].saved if not s.tag)
    assert little == inputs + beside
    assert whole > 5 * inputs
    frozen = tables(problem(freeze_tower=True))
    assert frozen.saved(0, 0)[EMBEDDING, 0] == frozen.saved(FULL, 0)[EMBEDDING, 0] < beside


def test_the_first_stage_has_fewer_layers() -> None:
    text = problem(text_of(model(layers=36)), images=None)
    assert text.chunk_sizes(4) == (9, 9, 9, 9)
    sizes = problem(model(layers=36), images=Images(per_sequence=4, height=1024, width=1024)).chunk_sizes(4)
    assert sum(sizes) == 36
    assert sizes[0] < min(sizes[1:])
    # Outputs of the tower go to its first three layers, however much the tower takes.
    heavy = problem(model(layers=36), images=Images(per_sequence=4, height=2048, width=2048))
    assert heavy.chunk_sizes(4) == (3, 11, 11, 11)
    assert heavy.most_chunks == text.most_chunks - 3


def test_chunks_beside_a_weight() -> None:
    for layers in range(1, 40):
        for chunks in range(1, layers + 3):
            assert sum(chunk_sizes_beside(layers, chunks, 5, 0)) == layers
            assert sorted(chunk_sizes_beside(layers, chunks, 0, 0)) == sorted(chunk_sizes(layers, chunks))
            assert min(chunk_sizes_beside(layers, chunks, 5, 3)) >= 0
    assert chunk_sizes_beside(36, 4, 6, 3) == [4, 11, 11, 10]


@pytest.mark.parametrize("name", ["llama-4-scout", "gemma-3-27b", "qwen3.5-35b-a3b"])
def test_operations_of_other_towers_have_the_flops_of_their_images(name: str) -> None:
    spec = model(name)
    assert spec.tower is not None
    side = spec.tower.side or 512
    of = problem(spec, images=Images(per_sequence=3, height=side, width=side))
    forward, backward = of.flops[:, EMBEDDING]
    assert forward == pytest.approx(3 * vision.forward_flops(spec.tower, spec.tower.patches(side, side)), rel=1e-12)
    assert forward < backward < 2 * forward  # no gradient of pixels
    every = sum(vision.parameters(spec.tower).values())
    assert tables(of).parameters["dense"][EMBEDDING, 0] == pytest.approx(table_parameters(spec) + every, rel=1e-12)


def internvit(**fields: Any) -> ModelSpec:
    """Four layers of a Qwen2.5-VL with the tower of Megatron-LM's examples/multimodal beside them: InternViT-6B, or
    small."""
    text = model("qwen2.5-vl-7b")
    sizes: dict[str, Any] = {"layers": 45, "hidden": 3200, "heads": 25, "inner": 12800, **fields}
    tower = VisionTower(
        **sizes, patch=14, channels=3, frames=1, merge=2, positions=1025, class_tokens=1, side=448, output=text.hidden,
        merger="perceptron", adapter=3584, projector_norm="layer", projector_bias=False, attention_bias=False,
        qk_norm=True, norm_bias=False, layer_scale=True, activation="gelu", pads_heads=True,
    )  # fmt: skip
    return replace(text, tower=tower)


TILES = Images(per_sequence=2, height=448, width=448)


def test_heads_are_added_where_ranks_do_not_divide_them() -> None:
    """Megatron makes 25 heads into 32 over 8 ranks, of 128 channels each, with their part of all four matrices and of
    the norms of queries and keys."""
    of = problem(internvit(), images=TILES)
    every, whole = vision.parameters(tower_of(of)), sum(vision.replicated(tower_of(of)).values())
    layer = 3 * 3200 * 4096 + 4096 * 3200 + 2 * 3200 * 12800 + 12800 + 2 * 4096  # what ranks split
    products = 12800 * 3584 + 3584 * 3584
    table = table_parameters(of.model)
    rank = tables(of, tp=8, dp=1)
    assert rank.parameters["dense"][EMBEDDING, 0] == (45 * layer + products + table) / 8 + whole
    assert tables(of, tp=1, dp=8).parameters["dense"][EMBEDDING, 0] == table + sum(every.values())
    gemms = {gemm.name: gemm for gemm in rank.operations[EMBEDDING].gemms}
    assert (gemms["tower qkv"].n[0], gemms["tower output"].k[0]) == (3 * 512, 512)
    assert gemms["tower qkv"].m[0] == 2 * 1025
    core, = rank.operations[EMBEDDING].cores  # fmt: skip
    assert core.flops[0] == 4.0 * 2 * 1025**2 * 512 * 45
    # A frozen tower trains none of them.
    frozen = tables(problem(internvit(), images=TILES, freeze_tower=True), tp=8, dp=1)
    assert frozen.parameters["trained_dense"][EMBEDDING, 0] == (products + table) / 8 + 2 * 12800


def test_saved_bytes_of_a_layer_of_internvit_are_those_that_torch_keeps() -> None:
    """InternVLVisionLayer in bf16 with norms that are one kernel: keys and queries before their norms, and both
    products that factors per channel scale."""
    n, heads, h, f = 65, 4, 64, 256
    norms = [torch.nn.LayerNorm(h, bias=False).bfloat16() for _ in range(4)]
    q, k, v, out, up, down = (torch.nn.Linear(i, o, bias=bias).bfloat16() for i, o, bias in (
        (h, h, False), (h, h, False), (h, h, False), (h, h, True), (h, f, True), (f, h, True)))  # fmt: skip
    scales = torch.nn.ParameterList(torch.ones(h, dtype=torch.bfloat16) for _ in range(2))
    kept = KeptBytes(*norms, q, k, v, out, up, down, scales)
    with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        x = torch.randn(n, h, dtype=torch.bfloat16, requires_grad=True)
        normed = norms[0](x)
        rows = (norms[2](q(normed)), norms[3](k(normed)), v(normed))
        parts = (row.view(1, n, heads, h // heads).transpose(1, 2) for row in rows)
        y = x + scales[0] * out(F.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(n, h))
        y + scales[1] * down(F.gelu(up(norms[1](y))))
    spec = internvit(layers=3, hidden=h, heads=heads, inner=f)
    of = problem(replace(spec, tower=replace(tower_of(problem(spec, images=TILES)), side=112)),
                 images=Images(per_sequence=1, height=112, width=112))  # fmt: skip
    assert tower_of(of).patches(112, 112) + 1 == n
    ops = tables(of).operations[EMBEDDING]
    of_layers = sum(float(np.asarray(saved.num_bytes)[0]) for saved in ops.saved if saved.tag)
    assert of_layers / 3 == pytest.approx(kept.num_bytes, rel=0.01)


def test_a_frozen_language_model_passes_gradients_to_the_projector() -> None:
    """Half of the products of a backward pass, no gradient or state of a layer, the table or the head; the projector
    above a frozen tower trains as before."""
    trained = problem(freeze_tower=True)
    frozen = problem(freeze_tower=True, freeze_language=True)
    layers, head = slice(0, frozen.num_kinds), EMBEDDING + 1
    assert [variant.trains for variant in frozen.variants] == ["passes"] * frozen.num_kinds
    cores = [2 * float(core.flops[0]) for ops in frozen.sequence_operations[layers] for core in ops.cores]
    products = frozen.flops[0, layers].sum() - sum(cores) / 2
    assert frozen.flops[1, layers].sum() == pytest.approx(products + sum(cores))
    assert frozen.flops[1, head] == frozen.flops[0, head]
    assert tuple(frozen.flops[:, EMBEDDING]) == tuple(trained.flops[:, EMBEDDING])
    of_rank, others = tables(frozen).parameters, tables(trained).parameters
    every = vision.parameters(tower_of(frozen))
    projectors = every["merger"] + every["deepstack"]
    assert of_rank["trained_dense"].sum() == of_rank["trained_dense"][EMBEDDING, 0] == projectors
    assert (of_rank["dense"] == others["dense"]).all()
    # Nothing keeps the input of a product whose weights do not train, but norms and attention keep theirs.
    less, more = (tables(of).saved(0, 0)[layers].sum() for of in (frozen, trained))
    assert 0.2 * more < less < 0.8 * more
    assert next(moved for moved in tables(frozen).operations[EMBEDDING].traffic
                if moved.name == "embedding").backward_bytes[0] == 0  # fmt: skip
    both = problem(freeze_language=True)
    assert tables(both).parameters["trained_dense"].sum() == sum(every.values())


def test_a_frozen_layer_keeps_the_bytes_that_torch_keeps() -> None:
    """A layer of GPT-2 in bf16 whose weights do not train and whose input has a gradient: inputs of norms and of the
    activation, and attention. Products keep no inputs."""
    n, h, f = 1024, 768, 3072
    norms = [torch.nn.LayerNorm(h).bfloat16() for _ in range(2)]
    qkv, out, up, down = (torch.nn.Linear(i, o).bfloat16() for i, o in ((h, 3 * h), (h, h), (h, f), (f, h)))
    modules = (*norms, qkv, out, up, down)
    for module in modules:
        module.requires_grad_(False)
    kept = KeptBytes(*modules)
    with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        x = torch.randn(n, h, dtype=torch.bfloat16, requires_grad=True)
        q, k, v = (part.view(1, n, 12, 64).transpose(1, 2) for part in qkv(norms[0](x)).chunk(3, dim=-1))
        y = x + out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, h))
        y + down(F.gelu(up(norms[1](y)), approximate="tanh"))
    spec = replace(model("gpt2"), dropout=False, tower=tower_of(problem()))
    work = Workload(seq_len=n, global_batch=8, images=Images(per_sequence=1, height=64, width=64), freeze_tower=True,
                    freeze_language=True)  # fmt: skip
    of = Problem(spec, work, load_stack("generic"), 8, 8)
    assert tables(of).saved(0, 0)[0, 0] == pytest.approx(kept.num_bytes, rel=0.001)
