"""Options that several commands share: one meaning everywhere (docs/reference/cli.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import typer


class RequestFlags(TypedDict, total=False):
    """The parameters of a command that go into the request under the same names; None: not given."""

    model: str | None  # name, file or folder
    gpu: str | None  # name
    gpus: int | None  # of the whole cluster
    exclude: str | None  # nodes of the cluster that are left out
    spot: str | None  # time between interruptions of a node, and its price
    cluster: str | Mapping[str, Any] | None  # as --cluster has it, or as a request describes one
    seq_len: str | None  # tokens per sequence
    lengths: str | None  # histogram of document lengths, or its file
    max_len: str | None  # the longest document that is a sequence of its own
    lengths_rule: str | None  # of the target, for degrees
    packed: bool | None  # documents share sequences
    global_batch: str | None  # sequences, or tokens, per step
    dtype: str | None  # compute precision
    optimizer: str | None
    lora: str | None  # rank, projections and base weights
    train_layers: int | None  # the last layers alone
    images: str | None  # of a sequence, with their size
    freeze_tower: bool | None  # the vision tower does not train
    freeze_language: bool | None  # the language model does not train
    reference: bool | None  # a frozen copy of the model beside it
    reward_model: bool | None  # one value per token in place of logits
    source_len: int | None  # tokens of the encoder
    technique: list[str] | None  # name and knobs of each
    total_tokens: str | None  # of the whole run
    objective: str | None  # step, cost or memory
    max_memory: str | None  # per GPU, with its unit
    headroom: str | None  # per GPU, a share or with its unit
    fix: list[str] | None  # fields of the layout
    target: str | None  # framework
    stack: str | None  # name or file
    stages: str | None  # even, own, or the chunks
    top: int | None  # layouts to list
    workload: str | None  # train, serve, or an algorithm of post-training
    input: str | None  # serving: tokens of a prompt
    output: str | None  # serving: tokens of an answer
    rate: str | None  # serving: requests per second
    concurrency: int | None  # serving: requests at any time
    ttft: str | None  # serving: promised time to first token
    tpot: str | None  # serving: promised time per output token
    percentile: str | None  # serving: percentage of the requests that keep the promises
    kv_cache: str | None  # serving: number format of the cache
    prefix_hit: str | None  # serving: share of the prompt tokens in the cache
    prefixes: int | None  # serving: different ones
    speculate: str | None  # serving: tokens, accepted, draft
    passes: int | None  # serving: passes that make an answer or an image
    hourly: str | None  # serving: requests per second by hour
    prompts: int | None  # post-training: prompts of a step
    samples: int | None  # post-training: answers to each prompt
    output_p90: str | None  # post-training: 90th percentile of the tokens of answers
    output_max: str | None  # post-training: tokens after which an answer is stopped
    updates: int | None  # post-training: optimizer steps on the answers of a step
    lag: int | None  # post-training: steps that answers may be old
    kl: bool | None  # post-training: whether a frozen copy scores answers
    reward: str | None  # post-training: rule, or a model
    critic: str | None  # post-training: the critic of ppo
    trainer: str | None  # post-training: the framework that trains
    engine: str | None  # post-training: the engine that generates


def request_flags(context: typer.Context) -> RequestFlags:
    """The parameters of the command that runs which go into the request."""
    # The output of a command is a file, but an answer may be one where it plans serving.
    fields = [name for name in RequestFlags.__annotations__ if name != "output" or "output_file" in context.params]
    given = {name: context.params[name] for name in fields if name in context.params}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    return cast(RequestFlags, plain)


def _names(kind: str) -> Callable[[str], list[str]]:
    """Shell completion out of a catalogue; silent where it cannot be read, as there is nobody to tell."""

    def complete(incomplete: str) -> list[str]:
        from .catalogues import known

        try:
            return [name for name in known(kind) if name.startswith(incomplete)]
        except Exception:
            return []

    return complete


def of_choices(*choices: str) -> Callable[[str], list[str]]:
    """Shell completion out of given words."""
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


def _option(*names: str, metavar: str, text: str, kind: str = "") -> Any:
    complete = _names(kind) if kind else None
    return typer.Option(*names, metavar=metavar, help=text, autocompletion=complete, show_default=False)


RequestFile = Annotated[
    Path | None,
    typer.Argument(metavar="REQUEST", help="Request file: YAML, JSON, TOML; - is YAML from stdin.", show_default=False),
]
RequestOrPlan = Annotated[
    Path | None,
    typer.Argument(metavar="REQUEST|PLAN", help="Request file, or plan file of `plan -o`.", show_default=False),
]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file, written by `plan -o`.", show_default=False)]

Model = Annotated[
    str | None,
    _option("--model", metavar="NAME|FILE|DIR", text="Model: name, YAML, or folder with config.json.", kind="models"),
]
Gpu = Annotated[str | None, _option("--gpu", metavar="NAME", text="GPU, as in `show gpus`.", kind="gpus")]
Gpus = Annotated[int | None, _option("--gpus", metavar="N", text="Number of GPUs.")]
GpuCounts = Annotated[
    str | None, _option("--gpus", metavar="N|A..B|A,B", text="Number of GPUs, or a range to compare.")
]
Deadline = Annotated[
    str | None,
    _option("--deadline", metavar="TIME", text="Find the cheapest number of GPUs in a range that meets it (30d)."),
]
Pareto = Annotated[
    str | None,
    _option("--pareto", metavar="AXIS,AXIS", text="Show the Pareto frontier over two or more of time, memory, gpus, "
            "cost."),
]
Jobs = Annotated[int, typer.Option("--jobs", metavar="N", help="Number of search processes [1].", show_default=False)]
Executor = Annotated[
    str | None, _option("--executor", metavar="ADDRESS", text="Search on a cluster: dask://host:port or ray://...")
]
Cluster = Annotated[
    str | None,
    _option("--cluster", metavar="NAME|FILE", text="Cluster: YAML, NODE:NODES or NxGPU.", kind="clusters"),
]
Exclude = Annotated[
    str | None,
    _option("--exclude", metavar="NODES|FILE", text="Leave out nodes: names, numbers, or those that are not idle in "
            "the output of `sinfo` (a file; - is stdin)."),
]  # fmt: skip
Spot = Annotated[
    str | None,
    _option("--spot", metavar="TIME[:PRICE]", text="Plan on spot nodes, each interrupted once in TIME: 50h:15USD/h."),
]
SeqLen = Annotated[str | None, _option("--seq-len", metavar="N|NK", text="Tokens per sequence, as 8192 or 8K [8192].")]
Lengths = Annotated[
    str | None,
    _option("--lengths", metavar="L:W,..|FILE|NAME", text="Document lengths with weights, a file, a folder "
            "of `launch tokens` or the sample `wikipedia`, in place of --seq-len."),
]
MaxLen = Annotated[
    str | None,
    _option("--max-len", metavar="N|NK", text="Train each document of --lengths up to this long (192K) as a sequence "
            "with a degree of its own."),
]
LengthsRule = Annotated[
    str | None,
    _option("--lengths-rule", metavar="hybrid|dynamic", text="With --max-len and --target megatron: rule that gives "
            "documents their degrees; dynamic is that of its dev branch [hybrid]. rl, in verl: dynamic "
            "gives each answer one [one for all]."),
]
LengthsScheme = Annotated[
    str | None,
    _option("--lengths-scheme", metavar="NAME,..|all", text="With --max-len: also price published schemes, as "
            "bytescale or zeppelin, on the same batches."),
]
Packed = Annotated[
    bool | None,
    typer.Option(
        "--packed/--pad", help="Pack documents into sequences, or pad each to its end [packed].", show_default=False
    ),
]
GlobalBatch = Annotated[
    str | None,
    _option("--global-batch", metavar="N|'N tokens'", text="Sequences, or tokens, per step [2^n, about 4M tokens]."),
]
GlobalBatchOrDocuments = Annotated[
    str | None,
    _option("--global-batch", metavar="N|'N tokens'", text="Sequences, or tokens, per step [2^n, about 4M tokens]; "
            "with --max-len documents, or tokens [512 documents].")
]
Dtype = Annotated[str | None, _option("--dtype", metavar="bf16|fp16|fp8|fp4|fp32", text="Compute precision [bf16].")]
DtypeOrWeights = Annotated[
    str | None,
    _option("--dtype", metavar="bf16|fp16|fp8|fp4|fp32",
            text="Compute precision [bf16]; serve: of the weights [that of the checkpoint].")
]
Optimizer = Annotated[
    str | None,
    _option("--optimizer", metavar="NAME", text="adamw, adamw-bf16, adamw-8bit, sgd or muon [adamw]."),
]
LoraOption = Annotated[
    str | None,
    _option("--lora", metavar="RANK[:q,v[:nf4]]", text="Train adapters: rank, projections or all, base weights."),
]
TrainLayers = Annotated[int | None, _option("--train-layers", metavar="N", text="Train only the last N layers.")]
Images = Annotated[
    str | None,
    _option("--images", metavar="N[@HxW[xF]]", text="Images of every sequence or request, in pixels (4@1024x768), "
            "for models with a vision tower [none: the text model]; size of the image or video (1@480x832x81) that a "
            "diffusion transformer denoises."),
]  # fmt: skip
FreezeTower = Annotated[
    bool | None,
    typer.Option("--freeze-tower", help="Train no layer of the vision tower.", show_default=False),
]
FreezeLanguage = Annotated[
    bool | None,
    typer.Option("--freeze-language", help="Train no part of the language model: its vision tower and projector alone.",
                 show_default=False),
]  # fmt: skip
Reference = Annotated[
    bool | None,
    typer.Option("--reference", help="Score every sequence by a frozen copy of the model before the loss, as in DPO.",
                 show_default=False),
]  # fmt: skip
RewardModel = Annotated[
    bool | None,
    typer.Option("--reward-model", help="Train a reward model: one value per token in place of logits.",
                 show_default=False),
]  # fmt: skip
SourceLen = Annotated[
    int | None,
    _option("--source-len", metavar="N", text="Tokens that the encoder reads, for models with an encoder and a "
            "decoder; --seq-len are those of the decoder [as many, or the 30 s of Whisper]."),
]  # fmt: skip
Technique = Annotated[
    list[str] | None,
    _option("--technique", metavar="NAME[:KNOB=N,..]", text="Train or serve with a technique of `show techniques`; "
            "repeatable."),
]
AllowTechnique = Annotated[
    list[str] | None,
    _option("--allow-technique", metavar="NAME[:KNOB=N,..]|all", text="Allow the search to use it; repeatable."),
]
TotalTokens = Annotated[
    str | None, _option("--total-tokens", metavar="N", text="Tokens of the whole run (15T), for days and cost.")
]
Objective = Annotated[
    str | None, _option("--objective", metavar="step|cost|memory", text="Minimise this [step].")
]
MaxMemory = Annotated[str | None, _option("--max-memory", metavar="SIZE", text="Limit per GPU, as in 70GiB.")]
Headroom = Annotated[
    str | None,
    _option("--headroom", metavar="5%|SIZE|0", text="Memory per GPU to leave free [the excess of published runs over "
            "their prediction; 0 with --max-memory]."),
]  # fmt: skip
FixOption = Annotated[
    list[str] | None,
    _option("--fix", metavar="FIELD=VALUE", text="Fix a field of the layout or a switch of the target; repeatable."),
]
SetOption = Annotated[
    list[str] | None, _option("--set", metavar="FIELD=VALUE", text="Set any field of the request; repeatable.")
]
Target = Annotated[
    str | None,
    _option("--target", metavar="NAME|any", text="Framework that runs the plan [meshwright].", kind="targets"),
]
TargetOrPostTraining = Annotated[
    str | None,
    _option("--target", metavar="NAME|any", kind="targets",
            text="Framework that runs the plan [meshwright]; rl: verl, nemo-rl, slime, areal or openrlhf [any]."),
]  # fmt: skip
Stack = Annotated[
    str | None, _option("--stack", metavar="NAME|FILE", text="Software versions [those of the target].")
]
Top = Annotated[int | None, _option("--top", metavar="N", text="Layouts to show [5].")]
LayoutId = Annotated[
    str | None, _option("--layout", metavar="ID", text="Layout id, as printed by `plan`.")
]
Output = Annotated[Path | None, _option("-o", "--output", metavar="FILE", text="Write the plan here, as JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output file.", show_default=False)]
Choice = Annotated[int, _option("--choice", metavar="#", text="Number of the layout in the plan [1].")]
