"""Flags of `plan --workload serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from .flag import flag

Workload = Annotated[
    str | None, flag("--workload", metavar="train|serve|grpo|ppo|dapo|dpo",
                      text="Plan a training step, a deployment that serves, or a step of post-training [train].")
]  # fmt: skip
Input = Annotated[
    str | None, flag("--input", metavar="N|DIST|FILE", text="serve: tokens of a prompt: 2000, 759:rms=926, "
                      "759:p90=1547, 512:0.7,4096:0.3, or a file of lengths or requests; rl: the mean [512].")
]  # fmt: skip
OutputFile = Annotated[Path | None, flag("-o", metavar="FILE", text="Write the plan here, as JSON.")]
Output = Annotated[
    str | None, flag("--output", metavar="FILE|N|DIST", text="As -o; tokens of an answer: serve as --input, rl mean.")
]
Rate = Annotated[str | None, flag("--rate", metavar="N/s", text="serve: requests per second [as many as can be].")]
Concurrency = Annotated[
    int | None, flag("--concurrency", metavar="N", text="serve: requests at any time, in place of --rate.")
]
Ttft = Annotated[str | None, flag("--ttft", metavar="TIME", text="serve: promised time to first token (1s).")]
Tpot = Annotated[str | None, flag("--tpot", metavar="TIME", text="serve: promised time per output token (50ms).")]
Percentile = Annotated[
    str | None, flag("--percentile", metavar="P", text="serve: percentage of the requests that keep both [90].")
]
KvCache = Annotated[
    str | None, flag("--kv-cache", metavar="auto|bf16|fp8", text="serve: number format of the KV cache [auto].")
]
PrefixHit = Annotated[
    str | None, flag("--prefix-hit", metavar="SHARE", text="serve: share of the prompt tokens that are found in the "
                      "prefix cache [0].")
]  # fmt: skip
Prefixes = Annotated[
    int | None, flag("--prefixes", metavar="N", text="serve: different prefixes that each cache keeps [1].")
]
Passes = Annotated[
    int | None, flag("--passes", metavar="N", text="serve: passes that make an answer or an image, where a model fills "
                      "it in [one for each masked token].")
]  # fmt: skip
Hourly = Annotated[
    str | None, flag("--hourly", metavar="LIST|FILE", text="serve: a rate for each hour (2/s,9/s,4/s), in place of "
                      "--rate: replicas by hour.")
]  # fmt: skip
Speculate = Annotated[
    str | None, flag("--speculate", metavar="K:A:DRAFT", text="serve: proposed tokens, share that is accepted, draft "
                      "(3:0.7:llama-3.2-1b, 1:0.8:mtp).")
]  # fmt: skip
