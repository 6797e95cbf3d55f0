"""Flags of `plan --workload grpo` and its kin."""

from __future__ import annotations

from typing import Annotated

import typer


def _flag(name: str, metavar: str, text: str) -> object:
    return typer.Option(name, metavar=metavar, help=text, show_default=False)


Prompts = Annotated[int | None, _flag("--prompts", "N", "rl: prompts of a step [128].")]
Samples = Annotated[int | None, _flag("--samples", "N", "rl: answers to each prompt [16; ppo 1; dpo 2].")]
OutputP90 = Annotated[
    str | None, _flag("--output-p90", "N", "rl: 90th percentile of the tokens of answers [about twice the mean].")
]
OutputMax = Annotated[
    str | None, _flag("--output-max", "N", "rl: tokens after which the engine stops an answer [none].")
]
Updates = Annotated[int | None, _flag("--updates", "N", "rl: optimizer steps on the answers of a step [1].")]
Lag = Annotated[
    int | None, _flag("--lag", "N", "rl: steps that answers may be older than the weights that train on them [0].")
]
Kl = Annotated[
    bool | None,
    typer.Option("--kl/--no-kl", help="rl: score answers by a frozen copy of the model [ppo, dpo: yes].",
                 show_default=False),
]  # fmt: skip
Reward = Annotated[
    str | None, _flag("--reward", "rule|MODEL", "rl: rewards by a rule, or by a model [rule; ppo: as the trained one].")
]
Critic = Annotated[str | None, _flag("--critic", "MODEL", "rl: critic of ppo [as the trained model].")]
Engine = Annotated[str | None, _flag("--engine", "NAME", "rl: engine that generates [vllm].")]
