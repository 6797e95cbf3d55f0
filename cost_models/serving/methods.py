"""Methods: what an engine does otherwise than the plain way, the same for all instances of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Methods:
    """Defaults are the plain way. Shares are of 0 to 1."""

    # Sums of tensor parallelism.
    hidden_sums: float = 0.0  # share of them that runs beside other work of the iteration
    sums_multiprocessors: float = 0.0  # share of the multiprocessors that they take meanwhile
    sums_of_prompts: bool = False  # those of prompts alone are hidden
    sums_in_halves: bool = False  # of the tokens, each of which reads the weights
    hides_from_tokens: float = 0.0  # of an iteration; with fewer nothing is hidden
    # Messages of experts.
    tokens_at_home: float = 0.0  # share of them that no message needs
    context_everywhere: bool = False  # each group has the caches of all: tokens stay where their experts are
    # Products, reads of the cache and messages beside one another, in so many parts of the tokens, each of which
    # reads the weights; 1: one after another.
    nano_batches: float = 1.0
    # Share of the multiprocessors with which reads of the cache, and messages, run at their full rate; the rest is for
    # products.
    reads_share: float = 1.0
    messages_share: float = 1.0
    host_beside: bool = False  # the host forms the next batch and launches it while an iteration runs
    # Prompts beside answers on the same GPU, each with multiprocessors of its own.
    prompt_share: float = 0.0  # of the multiprocessors, for prompts; 0: prompts and answers are in one iteration
    streams: float = 1.0  # of a prompt, each with all of its tokens
    # A draft on another device.
    draft_elsewhere: bool = False  # its weights and caches are not on the GPUs
    draft_from_share: float = 1.0  # of the model's layers, after which the draft runs beside the others; 1: after all
    draft_speed: float = 1.0  # over that of the GPUs
    # Caches that leave the GPU and come back, as other requests take their place.
    swaps: float = 0.0  # of a request
    swap_copy_s: float = 0.0  # to start one copy
    swap_copy_bytes: float = 0.0  # of one copy
    # Weights that are read from a disk while the layers before them run.
    window_layers: float = 0.0  # that lie in memory at once; 0: all
    disk_bytes_per_s: float = 0.0
    whole_heads: bool = False  # one device holds the token table and the head
    head_bytes: float = 2.0  # of a parameter of those

    # Images that begin at a device of their user, and tiers before the GPUs that run a part of the tower.
    uplink_bytes_per_s: float = 0.0  # from the device to the next tier; 0: images are at the GPUs
    backhaul_bytes_per_s: float = 0.0  # from the edge to the GPUs
    link_s: float = 0.0  # of each of these, there and back, beside the bytes
    device_flops_per_s: float = 0.0  # that the device reaches; 0: it computes nothing
    edge_flops_per_s: float = 0.0  # that the edge reaches for a request; 0: there is no edge
    pixel_bits: float = 0.0  # of a value of an image on its way
    feature_bits: float = 0.0  # of an element of hidden states on its way

    # A model that fills in all tokens of an answer over several passes.
    fills: bool = False  # an iteration is a pass over prompt and answer
    denoises: bool = False  # the answer is an image
    passes: float = 0.0  # of an answer, as the request has it; 0: it has none
    block_tokens: float = 0.0  # of an answer, which alone a pass runs over while all others are cached; 0: no caches
    copies: float = 1.0  # of a sequence in a pass: with and without its condition, and at several steps
    frames: float = 1.0  # of a stream in a pass, each at another step, so that each is in as many passes
    skipped: float = 0.0  # share of the requests that no pass is for: frames like the one before
    patches: bool = False  # ranks of tensor parallelism have all weights, and each a part of the tokens
    patch_context: float = 1.0  # share of the tokens of the other ranks that a rank's attend to


PLAIN = Methods()
