"""Flags of `launch` for weights, data and training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from .flag import flag

InitFrom = Annotated[
    Path | None, flag("--init-from", metavar="DIR", text="Start from the weights of a Hugging Face folder.")
]
Data = Annotated[
    str, flag("--data", metavar="synthetic|FILE|DIR", text="Text, token shards or pairs to train on [synthetic].")
]
Shuffle = Annotated[bool, flag("--shuffle", text="Read sequences in a random order, by seed and epoch.")]
EndToken = Annotated[
    int | None, flag("--end-token", metavar="ID", text="End of a document; what follows it has no loss.")
]
EvalData = Annotated[Path | None, flag("--eval-data", metavar="FILE|DIR", text="Data to evaluate the loss on.")]
EvalEvery = Annotated[int, flag("--eval-every", metavar="N", text="Steps between evaluations [100].")]
EvalBatches = Annotated[int, flag("--eval-batches", metavar="N", text="Global batches of an evaluation [10].")]
LearningRate = Annotated[float, flag("--lr", metavar="RATE", text="Learning rate [3e-4].")]
Schedule = Annotated[
    str, flag("--schedule", metavar="KIND", text="constant, cosine, linear or wsd decay of the rate [constant].")
]
Warmup = Annotated[int, flag("--warmup", metavar="N", text="First steps, in which the rate rises [0].")]
MinRate = Annotated[float, flag("--min-lr", metavar="RATE", text="Rate at the end of the decay [0].")]
DecaySteps = Annotated[
    int | None, flag("--decay-steps", metavar="N", text="Last steps, in which wsd decays [20 % of all].")
]
WeightDecay = Annotated[float, flag("--weight-decay", metavar="RATE", text="Weight decay of AdamW [0.1].")]
NoDecay = Annotated[
    str, flag("--no-decay", metavar="KINDS", text="No decay of these: norms,biases,embeddings [none].")
]
Clip = Annotated[float, flag("--clip", metavar="NORM", text="Gradient-norm limit; 0: no clipping [1].")]
LoraAlpha = Annotated[
    float | None, flag("--lora-alpha", metavar="ALPHA", text="LoRA alpha; adapters are scaled by alpha/rank [rank].")
]
BalanceExperts = Annotated[
    bool, flag("--balance-experts", text="Assign tokens to experts round-robin, to time untrained weights.")
]
Compile = Annotated[bool, flag("--compile", text="Compile each layer by torch.compile.")]
Metrics = Annotated[
    Path | None, flag("--metrics", metavar="FILE", text="Write each step here, one JSON object per line.")
]
Tracker = Annotated[
    str | None,
    flag("--tracker", metavar="NAME[=PLACE]", text="Write the metrics to tensorboard[=DIR] or wandb[=PROJECT], too."),
]
