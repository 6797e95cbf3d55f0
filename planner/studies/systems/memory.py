"""Checks of techniques that keep the states of training elsewhere."""

from __future__ import annotations

from typing import Any

from .base import Check, chosen, priced, shown_s

# A long context on one GPU, as in the paper; a socket with 8 channels of DDR5-4800.
_HOST: dict[str, Any] = {"name": "host", "gpu": "h100-pcie-80gb", "gpus_per_node": 1, "count": 1,
                         "host_memory": "512 GB", "host_memory_bandwidth": "307 GB/s"}  # fmt: skip
_LONG: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": {"groups": [_HOST]}, "seq_len": 16384, "global_batch": 1,
                         "stack": "deepspeed"}  # fmt: skip
_LAYOUT = "dp1-mbs1-z0-rfull-oopt+act"  # checkpoints of layers, as the paper sends to the host


def _optimizer_on_cards(neutral: bool) -> float:
    """The optimizer's step with all of its states on a card over that with all of them in DRAM."""
    naive = priced(_LAYOUT, chosen("cxl", neutral, activations=1, optimizer=1), **_LONG)
    return shown_s(naive, "optimizer") / shown_s(priced(_LAYOUT, None, **_LONG), "optimizer")


def _planned(neutral: bool) -> float:
    """Throughput over that of DRAM alone, activations on one card that DRAM then need not have."""
    dram = priced(_LAYOUT, None, **_LONG)
    planned = priced(_LAYOUT, chosen("cxl", neutral), **_LONG)
    freed = dram.memory[0].host_bytes > planned.memory[0].host_bytes
    return dram.step_s / planned.step_s if freed else 0.0


def _second_card(neutral: bool) -> float:
    """A step with one card of a link so slow that copies are nearly all of it, over one with two."""
    one, two = (priced(_LAYOUT, chosen("cxl", neutral, gb_per_s=gb_per_s), **_LONG) for gb_per_s in (0.001, 0.002))
    return one.step_s / two.step_s


CHECKS = (
    Check(
        technique="cxl",
        of="optimizer with its states on a card over that with them in DRAM",
        published="about 4 times slower (arXiv 2507.03305v2, abstract); 2 or more by arithmetic",
        low=2,
        high=307 / 36,  # of a step without anything else
        value=_optimizer_on_cards,
    ),
    Check(
        technique="cxl",
        of="throughput over DRAM alone, checkpoints of 8B, 16,384 tokens, on one card",
        published="0.97 to 0.99 with one card (arXiv 2507.03305v2, abstract)",
        low=0.95,
        high=1.0,
        value=_planned,
    ),
    Check(
        technique="cxl",
        of="copies of activations over one card over those over two",
        published="two cards bring the rate of DRAM (arXiv 2507.03305v2, abstract); 2 by arithmetic",
        low=1.9,
        high=2.1,
        value=_second_card,
    ),
)
