"""The fitted constants of the prices of serving."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConstants:
    """The fitted constants, the same for all models, GPUs and engines (profiles/catalogue/measured/serving.yaml)."""

    compute_share: float  # rate of products over that of a training step's
    bandwidth_share: float  # rate of reading weights over the bandwidth that a training step's products reach
    narrow_share: float  # of that rate, what weights of 4 bits are read at: kernels unpack and scale them
    expert_share: float  # rate of routed experts over those of dense blocks
    cache_share: float  # rate of reading the KV cache over the same bandwidth
    short_s: float  # that a kernel takes beside its reads and products: it is too short to fill a GPU
    latency_share: float  # latency of an engine's own collective over NCCL's
    traffic_share: float  # bandwidth of an engine's own collective over NCCL's
    sequence_s: float  # of the host, per sequence of an iteration of a group: scheduling, sampling, detokenising
    burst: float  # prompts of equal length that come together, over the root of those that run
    prompt_token_s: float  # of the front end, per token of a prompt: tokenising, hashing of blocks
    step_s: float  # of the host per iteration, which no overlap with the iteration before hides
