"""Flags of `plan --workload grpo` and its kin."""

from __future__ import annotations

from typing import Annotated

import typer

from .flag import flag

Prompts = Annotated[int | None, flag("--prompts", metavar="N", text="rl: prompts of a step [128].")]
Samples = Annotated[int | None, flag("--samples", metavar="N", text="rl: answers to each prompt [16; ppo 1; dpo 2].")]
OutputP90 = Annotated[
    str | None,
    flag("--output-p90", metavar="N", text="rl: 90th percentile of the tokens of answers [about twice the mean]."),
]
OutputMax = Annotated[
    str | None, flag("--output-max", metavar="N", text="rl: tokens after which the engine stops an answer [none].")
]
Updates = Annotated[
    int | None, flag("--updates", metavar="N", text="rl: optimizer steps on the answers of a step [1].")
]
Lag = Annotated[
    int | None,
    flag("--lag", metavar="N", text="rl: steps that answers may be older than the weights that train on them [0]."),
]
Kl = Annotated[
    bool | None,
    typer.Option("--kl/--no-kl", help="rl: score answers by a frozen copy of the model [ppo, dpo: yes].",
                 show_default=False),
]  # fmt: skip
Reward = Annotated[
    str | None,
    flag(
        "--reward", metavar="rule|MODEL", text="rl: rewards by a rule, or by a model [rule; ppo: as the trained one]."
    ),
]
Critic = Annotated[str | None, flag("--critic", metavar="MODEL", text="rl: critic of ppo [as the trained model].")]
Trainer = Annotated[str | None, flag(
    "--trainer", metavar="NAME", text="rl: framework that trains [megatron, or that of --target].")]  # fmt: skip
Engine = Annotated[str | None, flag(
    "--engine", metavar="NAME", text="rl: engine that generates [vllm, or that of --target].")]  # fmt: skip
