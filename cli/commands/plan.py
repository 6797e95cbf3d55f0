"""`meshwright plan`: the fastest layout that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import jobs as jobs_side_by_side
from .. import mixed_lengths, options, reinforcement, requests, rl_flags, serving, serving_flags, training
from ..console import Terminal
from ..files import check_writable
from ..flag import flag

if TYPE_CHECKING:
    from ...planner.request.gpu_counts import GpuRange
    from ...planner.request.load import Request
    from ...planner.request.reinforcement import RlRequest
    from ...planner.request.serving import ServingRequest

Stages = Annotated[
    str | None,
    flag("--stages", metavar="even|own|CHUNKS", text="Divide the layers evenly, place them best in the best pipelines "
         "(slower), or as given: layers of each chunk (3,4,4,3) or its parts (Et*3|(t*4|)*2t*3L) [even; over unlike "
         "groups of nodes by speed]."),
]
Layers = Annotated[
    training.Layers, flag("--layers", metavar="alike|own", text="Give all layers one strategy, or also search a "
                          "strategy for each layer [alike]."),
]  # fmt: skip
TimeLimit = Annotated[
    str | None,
    flag("--time-limit", metavar="TIME", text="Stop the search of a training step with the best so far, as in 30s."),
]
Fastest = Annotated[
    bool, flag("--fastest", text="Choose the fastest layout, even if a simpler one is as fast within the error.")
]
Seed = Annotated[
    int, flag("--seed", metavar="N", text="Random seed of the node-order search and of the batches that --max-len "
              "draws [0]."),
]  # fmt: skip
JobsFile = Annotated[
    Path | None,
    flag("--jobs-file", metavar="FILE", text="Place several models on the cluster, side by side: a YAML file with a "
         "list `jobs`."),
]
Trace = Annotated[
    Path | None, flag("--trace", metavar="FILE", text="Write the best layout's pipeline here, for Perfetto.")
]


def command(
    context: typer.Context,
    request: options.RequestFile = None,
    model: options.Model = None,
    gpu: options.Gpu = None,
    gpus: options.GpuCounts = None,
    cluster: options.Cluster = None,
    exclude: options.Exclude = None,
    spot: options.Spot = None,
    seq_len: options.SeqLen = None,
    lengths: options.Lengths = None,
    max_len: options.MaxLen = None,
    lengths_rule: options.LengthsRule = None,
    lengths_scheme: options.LengthsScheme = None,
    packed: options.Packed = None,
    global_batch: options.GlobalBatchOrDocuments = None,
    dtype: options.DtypeOrWeights = None,
    optimizer: options.Optimizer = None,
    lora: options.LoraOption = None,
    train_layers: options.TrainLayers = None,
    images: options.Images = None,
    freeze_tower: options.FreezeTower = None,
    freeze_language: options.FreezeLanguage = None,
    reference: options.Reference = None,
    reward_model: options.RewardModel = None,
    source_len: options.SourceLen = None,
    technique: options.Technique = None,
    allow_technique: options.AllowTechnique = None,
    total_tokens: options.TotalTokens = None,
    objective: options.Objective = None,
    max_memory: options.MaxMemory = None,
    headroom: options.Headroom = None,
    fix: options.FixOption = None,
    set_: options.SetOption = None,
    target: options.TargetOrPostTraining = None,
    stack: options.Stack = None,
    top: options.Top = None,
    pareto: options.Pareto = None,
    deadline: options.Deadline = None,
    stages: Stages = None,
    layers: Layers = "alike",
    time_limit: TimeLimit = None,
    fastest: Fastest = False,
    seed: Seed = 0,
    jobs: options.Jobs = 1,
    executor: options.Executor = None,
    workload: serving_flags.Workload = None,
    input: serving_flags.Input = None,
    rate: serving_flags.Rate = None,
    concurrency: serving_flags.Concurrency = None,
    ttft: serving_flags.Ttft = None,
    tpot: serving_flags.Tpot = None,
    percentile: serving_flags.Percentile = None,
    kv_cache: serving_flags.KvCache = None,
    prefix_hit: serving_flags.PrefixHit = None,
    prefixes: serving_flags.Prefixes = None,
    hourly: serving_flags.Hourly = None,
    speculate: serving_flags.Speculate = None,
    passes: serving_flags.Passes = None,
    prompts: rl_flags.Prompts = None,
    samples: rl_flags.Samples = None,
    output_p90: rl_flags.OutputP90 = None,
    output_max: rl_flags.OutputMax = None,
    updates: rl_flags.Updates = None,
    lag: rl_flags.Lag = None,
    kl: rl_flags.Kl = None,
    reward: rl_flags.Reward = None,
    critic: rl_flags.Critic = None,
    trainer: rl_flags.Trainer = None,
    engine: rl_flags.Engine = None,
    output_file: serving_flags.OutputFile = None,
    output: serving_flags.Output = None,
    force: options.Force = False,
    jobs_file: JobsFile = None,
    trace: Trace = None,
) -> None:
    """Find the fastest layout that fits, and the runners-up.

    With --workload serve: find the cheapest deployment that keeps the promises.
    With grpo, ppo, dapo or dpo: find the fastest placement of a step of
    post-training.

    A request file, flags, or both: a flag wins over the file.

    \b
    Examples:
      meshwright plan --model llama-3.1-8b --gpu h100-sxm-80gb --gpus 8
      meshwright plan request.yaml --fix tp=8 --max-memory 70GiB -o plan.json
      meshwright plan request.yaml --pareto time,memory
      meshwright plan run.yaml --gpus 64..256 --deadline 90d
      meshwright plan serve.yaml --rate 4/s --ttft 1s --tpot 50ms
      meshwright plan rl.yaml --workload grpo --lag 1
      meshwright plan --jobs-file jobs.yaml --cluster dgx-h100:8
    """
    from ...planner.request.gpu_counts import parse_range
    from ...planner.request.load import Request

    terminal: Terminal = context.obj
    numbers = None if gpus is None else parse_range(gpus)
    flags = options.request_flags(context)
    flags["gpus"] = None if gpus is None or numbers is not None else int(gpus.replace("_", ""))
    file = serving.tokens_or_file(flags, output_file)
    of_layouts: dict[str, object] = {"--gpus": numbers, "--pareto": pareto, "--trace": trace,
                                     "--layers own": layers == "own", "--time-limit": time_limit}  # fmt: skip
    of_steps = {**of_layouts, "--fastest": fastest, "--deadline": deadline}
    if jobs_file is not None:
        of_steps |= {"--set": set_, "--allow-technique": allow_technique}
        return jobs_side_by_side.run(terminal, jobs_file, flags, request, file, of_steps, force=force)
    requested = _request(request, set_, flags, numbers)
    for path in filter(None, (file, trace)):
        check_writable(path, force=force)
    if not isinstance(requested, Request):
        return _run_other(terminal, requested, file, allow_technique or (), of_steps, force=force)
    if requested.workload.max_len is not None:
        of_layouts["--allow-technique"] = allow_technique
        return mixed_lengths.run(terminal, requested, file, of_layouts, force=force, seed=seed, schemes=lengths_scheme)
    mixed_lengths.refuse_schemes(lengths_scheme)
    training.run(terminal, requested, training.Search(
        numbers=numbers, pareto=pareto, deadline=deadline, layers=layers, time_limit=time_limit, fastest=fastest,
        seed=seed, top=top, jobs=jobs, executor=executor, allow=allow_technique or (), output=file, trace=trace,
        force=force,
    ))  # fmt: skip


def _request(
    file: Path | None, sets: list[str] | None, flags: options.RequestFlags, numbers: GpuRange | None
) -> Request | ServingRequest | RlRequest:
    """The request of the file and the flags. Over a range of GPUs it names no number of them."""
    if numbers is None or flags["gpu"] is None or flags["cluster"] is not None:
        return requests.build_any(file, sets, flags)
    # A GPU alone is a request only with a number of them.
    return requests.build(file, sets, {**flags, "gpus": numbers.first}).model_copy(update={"gpus": None})


def _run_other(
    terminal: Terminal, requested: ServingRequest | RlRequest, file: Path | None, allow: Sequence[str],
    refused: Mapping[str, object], *, force: bool,
) -> None:  # fmt: skip
    """Plans another workload than a training step. refused: flags that go with a training step."""
    from ...planner.request.serving import ServingRequest

    serving.refuse(refused)
    if isinstance(requested, ServingRequest):
        return serving.run(terminal, requested, file, force=force, allow=allow)
    serving.refuse({"--allow-technique": allow})
    return reinforcement.run(terminal, requested, file, force=force)
