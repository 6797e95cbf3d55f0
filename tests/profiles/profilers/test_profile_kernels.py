"""`profile kernels`: what is timed is what the planner prices, and what was timed comes back as it was."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import yaml
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.quantities.flops import model_flops
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.cost_models.rates.kernel_seconds import kernel_seconds
from meshwright.cost_models.rates.layer_seconds import COMPONENTS
from meshwright.cost_models.rates.surfaces import at_training_factor
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.profiles.profilers import pricing, runners, timing
from meshwright.profiles.profilers.kernels import Kernel, Kind, Need, distinct, needs
from meshwright.runtime.rehearsal import custom_kernels

from ...snapshots import run_here

CPU = torch.device("cpu")
TINY = {"hidden": 64, "layers": 3, "heads": 4, "kv_heads": 2, "ffn_hidden": 96, "vocab": 256, "max_positions": 64}


def request(**changes: Any) -> Resolved:
    asked = {"model": "llama-3.1-8b", "gpu": "h200-sxm-141gb", "gpus": 8, "seq_len": 4096, "global_batch": 32}
    return resolve(load_request(None, {**asked, **changes}))


def calls_of(resolved: Resolved, layout: str) -> Need:
    return needs(resolved.problem, [parse(layout)])[0]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-1.7b", "gpt2-xl", "mixtral-8x7b"])
def test_the_products_make_up_the_flops_of_a_step(model: str) -> None:
    resolved = request(model=model, gpus=1, seq_len=1024)
    need = calls_of(resolved, "dp1-mbs2-z0-rnone")
    once = sum(calls * kernel.flops for kernel, calls in need.calls.items())
    assert once * 16 == pytest.approx(model_flops(resolved.problem), rel=1e-6)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.2-1b", "gpt2-xl"])
def test_the_optimizer_steps_over_every_parameter_of_a_rank(model: str) -> None:
    from meshwright.cost_models.quantities.params import total_parameters

    resolved = request(model=model, gpus=8, seq_len=1024)
    for layout, ranks in (("dp8-mbs1-z0-rnone", 1), ("dp8-mbs1-z1-rnone", 8)):
        sizes = {k.kind: calls * k["parameters"] for k, calls in calls_of(resolved, layout).calls.items()
                 if k.kind in ("update", "accumulation")}  # fmt: skip
        assert sizes["update"] * ranks == pytest.approx(total_parameters(resolved.model), rel=1e-9)
        assert sizes["accumulation"] == pytest.approx(total_parameters(resolved.model), rel=1e-9)


@pytest.mark.parametrize("layout", ["dp8-mbs1-z0-rnone", "tp4-dp2-mbs2-z1-rnone"])
def test_prices_of_kernels_are_those_of_the_planner(layout: str) -> None:
    resolved = request()
    need = calls_of(resolved, layout)
    keys, _ = index_keys(Layouts.of([parse(layout)]))
    tables = build(resolved.problem, keys)
    kernels, layers = kernel_seconds(tables, resolved.rates).layers, resolved.problem.num_kinds
    edges = kernels[layers:]
    planned = {name: 0.0 for name in ("matmul", "attention", "memory")}
    for name in planned:
        row = COMPONENTS.index(name)
        for seconds, count in [*zip(kernels[:layers], [32], strict=True), *((edge, 1) for edge in edges)]:
            planned[name] += count * float(seconds.forward[row, 0] + seconds.backward[row, 0])
    priced = dict.fromkeys(planned, 0.0)
    for kernel, calls in need.calls.items():
        name = {"gemm": "matmul", "attention": "attention"}.get(kernel.kind, "memory")
        if kernel.kind not in ("update", "accumulation"):
            priced[name] += calls * pricing.seconds(kernel, resolved.rates)
    assert priced == pytest.approx(planned, rel=1e-9)
    assert not need.missing


def test_what_cannot_be_timed_is_named() -> None:
    assert calls_of(request(), "cp2r-dp4-mbs1-z1-rnone").missing == ("attention split over cp",)
    assert calls_of(request(model="gpt-oss-120b", seq_len=128), "dp8-mbs1-z1-rnone").missing[-1] == "expert bias"


@pytest.mark.parametrize("layout", ["dp8-mbs1-z1-rnone", "dp8-ep4-mbs2-z1-rnone", "tp2-dp4-ep4-etp2-mbs2-z1-rnone"])
@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v2-lite"])
def test_kernels_of_experts_move_what_the_planner_prices(model: str, layout: str) -> None:
    """Also where one layer has two activations, of routed experts and of shared ones, and another one dense."""
    resolved = request(model=model)
    need = calls_of(resolved, layout)
    tables = build(resolved.problem, index_keys(Layouts.of([parse(layout)]))[0])
    assert not need.missing or model != "mixtral-8x7b"
    for name in ("activation", "permute", "sort"):
        parts = [(resolved.problem.pattern.count(i), part) for i, ops in enumerate(tables.operations)
                 for part in ops.traffic if part.name == name]  # fmt: skip
        planned = sum(count * float(part.forward_bytes[0] + part.backward_bytes[0]) for count, part in parts)
        assert sum(calls * k.num_bytes for k, calls in need.calls.items() if k.kind == name) == pytest.approx(planned)


def test_experts_are_timed_in_their_shapes() -> None:
    """A rank of Mixtral with 2 of 8 experts, in halves, gets 1.1 times its share of 2 copies of 4,096 tokens."""
    problem = request(model="mixtral-8x7b").problem
    need = needs(problem, [parse("tp2-dp4-ep4-etp2-mbs1-z1-rnone")])[0]
    rows = round(2 * 2 * 2048 * problem.stack.moe_imbalance)
    shapes = {kernel.kind: dict(kernel.shape) for kernel in need.calls}
    assert shapes["activation"] == {"tokens": rows, "inner": 14336 // 2, "gated": 1}
    assert shapes["permute"] == {"tokens": 2048, "copies": rows // 2, "hidden": 4096}
    assert shapes["sort"] == {"rows": rows, "hidden": 4096}
    other = replace(problem, stack=replace(problem.stack, ep_dispatch="deduplicated"))
    assert needs(other, [need.layout])[0].missing == ("permute",)


@pytest.mark.parametrize(
    "custom", [runners.NO_CUSTOM_KERNELS, runners.CustomKernels(custom_kernels.action_factories("silu", "adamw"))]
)
def test_copies_are_summed_up_by_token(custom: runners.CustomKernels) -> None:
    """Backward passes can be timed again and again, though the runtime's reuses the memory of what it keeps."""
    shape = (("tokens", 6), ("copies", 12), ("hidden", 4))
    forward, backward = (runners.make(Kernel("permute", direction, shape, "x"), "fp32", CPU, custom)
                         for direction in ("forward", "backward"))  # fmt: skip
    out, *gradients = forward(), *(backward() for _ in range(2))
    assert isinstance(out, torch.Tensor)
    assert out.shape == (6, 4)
    assert out.count_nonzero() == 24  # every token has copies
    assert all(gradient[0].shape == (6, 4) for gradient in gradients)  # type: ignore[index]


def test_every_kind_of_kernel_can_be_made() -> None:
    assert set(get_args(Kind)) == set(runners.FACTORIES)


def test_passes_compute_what_they_are_named_after() -> None:
    shape = (("m", 6), ("n", 10), ("k", 4))
    results = {d: runners.make(Kernel("gemm", d, shape, "x"), "fp32", CPU)()
               for d in ("forward", "input gradient", "weight gradient")}  # fmt: skip
    assert {d: tuple(r.shape) for d, r in results.items()} == {  # type: ignore[attr-defined]
        "forward": (6, 10), "input gradient": (6, 4), "weight gradient": (10, 4)}  # fmt: skip
    resolved = resolve(load_request(None, {"model": "llama-3.2-1b", "gpu": "h200", "gpus": 1, "seq_len": 64,
                                        "global_batch": 1}))  # fmt: skip
    for kernel in distinct(needs(resolved.problem, [parse("dp1-mbs1-z0-rnone")])):
        if kernel.kind in ("norm", "rotary", "activation", "attention"):
            once, twice = (runners.make(kernel, "bf16", CPU)() for _ in range(2))
            first, second = (each if isinstance(each, torch.Tensor) else each[0] for each in (once, twice))  # type: ignore[index]
            assert not torch.equal(first, second)  # inputs of its own every time
            assert isinstance(once, torch.Tensor) == (kernel.direction == "forward")


def test_samples_are_as_many_as_the_effort_allows() -> None:
    made: list[int] = []

    def make() -> timing.Action:
        return lambda: made.append(1)

    assert len(timing.sample(make, 1.0, CPU, timing.Effort(5, 1e9, 1e9))) == 5
    assert len(made) == 5 + timing.WARM_UP
    assert len(timing.sample(make, 1.0, CPU, timing.Effort(50, 0.0, 1e9))) == timing.LEAST_SAMPLES


def test_a_run_that_is_out_of_time_says_so() -> None:
    clock = timing.Clock(timing.Effort(5, 1.0, 60.0))
    assert clock.refuses(1e30, 0.0) is None  # nothing is known yet
    clock.learn(1e12, 0.0, 1.0)
    assert clock.refuses(1e12, 0.0) is None
    assert "60 s were up" in str(clock.refuses(20e12, 0.0))


def test_planted_efficiencies_come_back() -> None:
    resolved = request()
    need = calls_of(resolved, "dp8-mbs1-z0-rnone")
    true = replace(
        resolved.rates, gemm=replace(resolved.rates.gemm, training_factor=0.71),
        wide_gemm=replace(resolved.rates.wide_gemm, training_factor=0.71),
        attention=at_training_factor(resolved.rates.attention, 1.3), memory_bw_bytes_per_s=0.6 * 4.8e12,
    )  # fmt: skip
    measured = {kernel: pricing.seconds(kernel, true) for kernel in need.calls}
    for kernel in measured:
        if kernel.kind in pricing.SINGLE:
            measured[kernel] = kernel.num_bytes / (0.6 * 4.8e12)
    told = pricing.efficiencies(measured, [need], resolved.rates, 4.8e12)
    assert told.gemm == pytest.approx(0.71, rel=1e-6)
    assert told.attention == pytest.approx(1.3, rel=1e-6)
    assert told.fused == pytest.approx(0.6, rel=1e-9)


def words(folder: Path, *more: str) -> list[str]:
    model = folder / "tiny.yaml"
    model.write_text(yaml.safe_dump(TINY), encoding="utf-8")
    return ["profile", "kernels", "--model", str(model), "--gpu", "h200", "--gpus", "1", "--seq-len", "64",
            "--global-batch", "2", "--layout", "dp1-mbs1-z0-rnone", "--quick", "--device", "cpu",
            "-o", str(folder / "k.yaml"), *more]  # fmt: skip


def test_the_profile_holds_every_kernel_with_units_and_samples(tmp_path: Path) -> None:
    done = run_here(*words(tmp_path))
    assert done.code == 0, done
    profile = yaml.safe_load((tmp_path / "k.yaml").read_text(encoding="utf-8"))
    resolved = request(model=str(tmp_path / "tiny.yaml"), gpus=1, seq_len=64, global_batch=2)
    wanted = list(distinct([calls_of(resolved, "dp1-mbs1-z0-rnone")]))
    assert len(profile["kernels"]) == len(wanted)
    assert profile["environment"]["torch"] == torch.__version__
    assert profile["gpu"] is None
    assert "efficiencies" not in profile
    lines = (tmp_path / profile["samples"]).read_text(encoding="utf-8").splitlines()[1:]
    for item, line in zip(profile["kernels"], lines, strict=True):
        raw = np.array([float(value) for value in line.split(",")[1:]])
        assert len(raw) == item["samples"] >= timing.LEAST_SAMPLES
        assert float(item["median"].removesuffix(" us")) == pytest.approx(1e6 * float(np.median(raw)), rel=1e-3)
    assert "the request is for h200-sxm-141gb" in done.err


def test_an_interrupted_run_goes_on_and_times_nothing_twice(tmp_path: Path) -> None:
    assert run_here(*words(tmp_path)).code == 0
    samples = tmp_path / "k.samples.csv"
    head, first, *rest = samples.read_text(encoding="utf-8").splitlines()
    planted = ",".join([first.split(",")[0], "12.5", "12.5", "12.5"])
    samples.write_text("\n".join([head, planted, *rest[:4]]) + "\n", encoding="utf-8")
    done = run_here(*words(tmp_path, "--resume", "--force"))
    assert done.code == 0, done
    profile = yaml.safe_load((tmp_path / "k.yaml").read_text(encoding="utf-8"))
    assert profile["kernels"][0]["median"] == "1.25e+07 us"
    assert len(profile["kernels"]) == len(rest) + 1
    # Of other versions, or damaged: said with the place, and nothing is mixed.
    samples.write_text("\n".join([head.replace(torch.__version__, "1.0"), planted]) + "\n", encoding="utf-8")
    other = run_here(*words(tmp_path, "--resume", "--force"))
    assert other.code == 2
    assert f"torch: 1.0, here {torch.__version__}" in other.err
    samples.write_text(f"{head}\n{planted}\ngemm,fast\n", encoding="utf-8")
    assert "line 3: `gemm,fast` is not a row of samples" in run_here(*words(tmp_path, "--resume", "--force")).err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--device", "tpu"), "none of auto, cuda, cpu"),
        (("--dtype", "fp8"), "fp8 products are not timed yet"),
        (("--layout", "dp3-mbs1-z0-rnone"), "dp"),
    ],
)
def test_bad_input_is_said(tmp_path: Path, more: tuple[str, ...], said: str) -> None:
    done = run_here(*words(tmp_path), *more)
    assert done.code == 2
    assert said in done.err
    assert not (tmp_path / "k.yaml").exists()


def test_what_is_not_known_is_said() -> None:
    assert "unknown thing to measure `kernel`" in run_here("profile", "kernel").err
    assert "name it: `-o kernels.yaml`" in run_here("profile", "kernels", "--resume").err


def test_a_dry_run_lists_the_shapes_and_times_nothing(tmp_path: Path) -> None:
    done = run_here(*words(tmp_path), "--dry-run")
    assert done.code == 0
    assert re.search(r"^qkv +weight gradient +64 x 128 x 64 +3$", done.out, re.M)
    assert not list(tmp_path.glob("k.*"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_every_kernel_runs_and_large_products_near_their_price(tmp_path: Path) -> None:
    resolved = request(model="llama-3.2-1b", gpus=1, seq_len=2048, global_batch=2)
    cuda = torch.device("cuda")
    for kernel in distinct([calls_of(resolved, "dp1-mbs1-z0-rnone")]):
        samples = timing.sample(lambda each=kernel: runners.make(each, "bf16", cuda),  # type: ignore[misc]
                                runners.input_bytes(kernel, "bf16"), cuda, timing.QUICK)  # fmt: skip
        assert min(samples) > 0
