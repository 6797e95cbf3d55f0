"""Checks of techniques by which replicas send each other less, or more rarely."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....cost_models.quantities.gossip import Gossip, of_shape
from ...document.candidate import Candidate
from ..gossip import best_rates
from .base import Check, chosen, priced, shown_s, single_gpus

_SMALL: dict[str, Any] = {"model": "llama-3.2-1b", "seq_len": 2048, "global_batch": 256, "stack": "deepspeed"}
_REPLICAS = "dp16-mbs1-z0-rnone"
_SLOW = 0.01  # Gb/s: a step is communication


def _shown_s(candidate: Candidate) -> float:
    return shown_s(candidate, "dp comm, exposed")


def _less_sent(name: str, neutral: bool, **knobs: float) -> float:
    """How many times less replicas wait for than in plain training, where a step is communication."""
    links = single_gpus(16, _SLOW)
    plain = priced(_REPLICAS, None, cluster=links, **_SMALL)
    other = priced(_REPLICAS, chosen(name, neutral, **knobs), cluster=links, **_SMALL)
    return _shown_s(plain) / _shown_s(other)


def _one_bit_adam(neutral: bool) -> float:
    return _less_sent("1-bit-adam", neutral, warmup=0.15)


def _diloco(neutral: bool) -> float:
    return _less_sent("diloco", neutral, delay=0)


def _co2(neutral: bool) -> float:
    """Scaling efficiency: the step without messages over the step."""
    asked: dict[str, Any] = {"model": "llama-2-7b", "seq_len": 2048, "global_batch": 16 * 16, "stack": "deepspeed",
                             "cluster": single_gpus(16, 80, "a100-sxm-80gb")}  # fmt: skip
    candidate = priced("dp16-mbs4-z0-rfull-oopt", chosen("co2", neutral), **asked)
    return 1 - _shown_s(candidate) / candidate.step_s


def _noloco(neutral: bool) -> float:
    """An all-reduce of 256 replicas over an exchange of two, where latency is what messages cost."""
    asked: dict[str, Any] = {**_SMALL, "global_batch": 256, "cluster": single_gpus(256, 10_000, latency="1 s")}
    plain = priced("dp256-mbs1-z0-rnone", None, **asked)
    other = priced("dp256-mbs1-z0-rnone", chosen("noloco", neutral, period=50), **asked)
    return _shown_s(plain) / _shown_s(other) / (1 if neutral else 50)


def _econtrol(neutral: bool) -> float:
    """Replicas from which on an all-gather of 1 % takes longer than the sum of all, in fp32."""

    def gained(replicas: int) -> float:
        asked: dict[str, Any] = {**_SMALL, "global_batch": replicas, "cluster": single_gpus(replicas, _SLOW),
                                 "dtype": "fp32"}  # fmt: skip
        layout_id = f"dp{replicas}-mbs1-z0-rnone-fp32"
        return _shown_s(priced(layout_id, None, **asked)) / _shown_s(
            priced(layout_id, chosen("econtrol", neutral, share=0.01), **asked)
        )

    return next((float(n) for n in range(64, 129, 4) if gained(n) < 1), 0.0)


def _shown_over_graph(neutral: bool, gossip: Gossip) -> float:
    """Seconds of exchanges in a step over links so slow that nothing hides them."""
    asked: dict[str, Any] = {**_SMALL, "global_batch": gossip.replicas,
                             "cluster": single_gpus(gossip.replicas, _SLOW)}  # fmt: skip
    technique = chosen("dadao", neutral, exchanges=gossip.exchanges)
    return _shown_s(priced(f"dp{gossip.replicas}-mbs1-z0-rnone", technique, **asked))


def _line(neutral: bool) -> float:
    """Exchanges of 64 replicas on a line over those where all are joined."""
    line, complete = (_shown_over_graph(neutral, Gossip(64, links, np.ones(len(links))))
                      for links in (of_shape("line", 64), of_shape("complete", 64)))  # fmt: skip
    return line / complete


def _best_rates(neutral: bool) -> float:
    """Exchanges with equal rates over those with the best: two groups of 4 replicas, all joined, and a link between."""
    group = of_shape("complete", 4)
    links = [*group, *((i + 4, j + 4) for i, j in group), (3, 4)]
    equal, best = (_shown_over_graph(neutral, gossip)
                   for gossip in (Gossip(8, links, np.ones(len(links))), best_rates(8, links)))  # fmt: skip
    return equal / best


CHECKS = (
    Check(
        technique="1-bit-adam",
        of="volume of 16-bit gradients over its own, with a warm-up of 15 %",
        published="up to 5 times less volume (arXiv 2102.02888, abstract)",
        low=4.9,
        high=5.0,
        value=_one_bit_adam,
    ),
    Check(
        technique="diloco",
        of="bandwidth of 16-bit gradients at every step over its own, on average",
        published="two orders of magnitude less bandwidth (arXiv 2501.18512, abstract)",
        low=100,
        high=999,
        value=_diloco,
    ),
    Check(
        technique="co2",
        of="scaling efficiency of 7B on 16 nodes at 80 Gb/s",
        published="full overlap at 80 Gb/s (arXiv 2401.16265, abstract)",
        low=0.98,
        high=1.0,
        value=_co2,
    ),
    Check(
        technique="noloco",
        of="time of an all-reduce of 256 replicas over that of an exchange, latency alone",
        published="about 10 times faster at a few hundred workers (arXiv 2506.10911, abstract)",
        low=8,
        high=18,
        value=_noloco,
    ),
    Check(
        technique="dadao",
        of="exchanges of 64 replicas on a line over those where all are joined",
        published="28.8 by arithmetic: n sqrt(2) / pi; the paper has no figure of it (arXiv 2208.00779)",
        low=28,
        high=31,
        value=_line,
    ),
    Check(
        technique="dadao",
        of="exchanges with equal rates over those with the best, two groups of 4 joined by a link",
        published="1.654 by arithmetic: 13/4 / sqrt(3 - sqrt 7) = 5.46 with equal rates, 3.30 with 0.362 at the ends "
        "of the link and 0.286 elsewhere for 1 on it; the paper has fewer and no figure (arXiv 2208.00779)",
        low=0.98 * 1.654,
        high=1.02 * 1.654,
        value=_best_rates,
    ),
    Check(
        technique="econtrol",
        of="replicas from which on 1 % of all gradients, gathered, takes longer than their sum",
        published="about 100 by arithmetic: a value and an index of 1 % from each, against two values of all",
        low=90,
        high=110,
        value=_econtrol,
    ),
)
