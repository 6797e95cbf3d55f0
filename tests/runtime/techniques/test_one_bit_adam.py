"""1-bit Adam on ranks, beside a restatement of its algorithm in one process."""

from __future__ import annotations

import numpy as np
from meshwright.runtime.job import Job
from meshwright.runtime.rehearsal.exchanged import planned_bytes

from ..techniques_of import Model, Weights, differ, run, trained_by

N, WARMUP = 4, 2


def signs(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(x >= 0, 1.0, -1.0) * np.sqrt((x**2).mean()))


def restated(wanted: Job, units: list[list[str]]) -> list[Weights]:
    """Weights after each step. units: names of the parts that are encoded together."""
    model, rate = Model(wanted), wanted.learning_rate
    weights = model.start
    shape = {name: w.shape for name, w in weights.items()}

    def flat(of: Weights) -> list[np.ndarray]:
        return [np.concatenate([of[name].numpy().ravel() for name in names]) for names in units]

    w = flat(weights)
    m, v = [np.zeros_like(x) for x in w], [np.zeros_like(x) for x in w]
    worker = [[np.zeros_like(x) for x in w] for _ in range(N)]
    server = [np.zeros_like(x) for x in w]  # the parts of all servers, one after the other
    out = []
    for step in range(wanted.steps):
        every = [flat(model.gradients(weights, step, r, N)[0]) for r in range(N)]
        t = step + 1
        if t <= WARMUP:
            mean = [np.mean(parts, 0) for parts in zip(*every, strict=True)]
            norm = np.sqrt(sum((g**2).sum() for g in mean))
            clipped = [g * min(1.0, (wanted.clip or 0.0) / norm) for g in mean]
            m = [0.9 * a + 0.1 * g for a, g in zip(m, clipped, strict=True)]
            v = [0.95 * a + 0.05 * g**2 for a, g in zip(v, clipped, strict=True)]
        for u in range(len(w)) if t > WARMUP else ():
            sent = []
            for r in range(N):
                momentum = 0.9 * m[u] + 0.1 * every[r][u] + worker[r][u]
                sent.append(signs(momentum))
                worker[r][u] = momentum - sent[r]
            gathered = np.mean(sent, 0) + server[u]
            back = np.concatenate([signs(part) for part in np.split(gathered, N)])
            server[u], m[u] = gathered - back, back * (v[u] > 0)
        for u, names in enumerate(units):
            step_of = (m[u] / (1 - 0.9**t)) / (np.sqrt(v[u] / (1 - 0.95 ** min(t, WARMUP))) + 1e-8)
            w[u] = w[u] * (1 - 0.1 * rate) - rate * step_of
            start = 0
            for name in names:
                size = weights[name].numel()
                weights[name] = model.start[name].new_tensor(w[u][start : start + size]).view(shape[name])
                start += size
        out.append(dict(weights))
    return out


def test_trains_as_restated() -> None:
    """Four replicas, two steps of warm-up, then signs in two phases: all replicas have the weights of the algorithm."""
    wanted = trained_by("1-bit-adam", "dp4-mbs1-z0-rnone", {"warmup": WARMUP / 6}, learning_rate=1e-3)
    ran = run(wanted)
    expected = restated(wanted, ran[0].units)
    for step in range(wanted.steps):
        for replica in range(N):
            assert differ(ran[replica].weights[step], expected[step]) < 1e-10, (step, replica)
    (planned,) = planned_bytes(wanted)
    size = sum(w.numel() for w in expected[0].values())
    gradients, bits = WARMUP * 1.5 * 4 * size, (wanted.steps - WARMUP) * 1.5 * size / 8
    assert planned == gradients + bits
    scales = len(ran[0].units) * (wanted.steps - WARMUP) * 2 * 3 * 8
    for rank in ran:
        assert rank.sent == (2 * gradients + bits, scales)  # gradients in float64, where the ledger has fp32
        assert rank.given["alltoall_base_"] + rank.given["_allgather_base_"] == bits
