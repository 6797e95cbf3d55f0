"""The costs that FlexSP published for its own runs (profiles/catalogue/measured/flexsp_costs.yaml)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ...errors import InputError
from ...profiles.io.folders import MEASURED
from ...profiles.io.reader import read_document
from .costs import GroupCosts, powers_of_two

_MI, _GI = 2.0**20, 2.0**30


@lru_cache
def _constants() -> Any:
    return read_document(MEASURED / "flexsp_costs.yaml").data


def flexsp_costs(model: str, max_len_k: int, num_ranks: int = 64, least_degree: int = 1) -> GroupCosts:
    """Costs of a model trained on sequences of up to `max_len_k` thousand tokens, whose position table counts.

    Raises InputError for a model, a length or a number of ranks without published constants.
    """
    published = _constants()
    known = published["models"].get(model)
    bandwidths = published["all_to_all_mib_ms"]
    degrees = powers_of_two(num_ranks, least_degree)
    if known is None or max_len_k not in known["parameters_gi"] or degrees[-1] > max(bandwidths):
        text = f"{model} at {max_len_k}K tokens on {num_ranks} GPUs: FlexSP published no costs of it"
        raise InputError(text, hint=f"it did of {', '.join(published['models'])} at 192K and 384K on 64 GPUs")
    memory = float(published["memory"].split()[0]) * _GI
    states = known["parameters_gi"][max_len_k] * _GI * published["state_bytes"] / num_ranks
    grid = np.array([1.0, _MI])
    compute_s = 1e-3 * (known["a1_ms"] * grid[:, None] + known["a2_ms"])
    sent = 4 * 2 * known["layers"] * known["hidden"] * 2 / _MI  # MiB of a token
    exchange_s = np.array([1e-3 * sent / bandwidths[int(degree)] if degree > 1 else 0.0 for degree in degrees])
    return GroupCosts(
        num_ranks=num_ranks, degrees=degrees, rank_tokens=int((memory - states) / _MI / known["mib_per_token"]),
        grid=grid, token_s=(compute_s + exchange_s) / degrees, micro_batch_s=1e-3 * known["b_ms"],
    )  # fmt: skip
