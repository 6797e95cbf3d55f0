"""Streaming DiLoCo on ranks, beside a restatement of its algorithm in one process."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from meshwright.runtime.job import Job
from meshwright.runtime.rehearsal.exchanged import planned_bytes
from meshwright.runtime.techniques.packed import E3M0
from torch import Tensor

from ..techniques_of import Adam, Model, Weights, differ, run, trained_by

LEVELS = np.array([0.0, *(2.0**-k for k in range(6, -1, -1))])


def nearest(x: Tensor) -> Tensor:
    """A tensor in 4 bits with its largest absolute value as the scale, by a search over all levels."""
    scale = x.abs().max()
    distance = (x.abs().numpy()[:, None] / scale.item() - LEVELS).__abs__()
    return torch.from_numpy(LEVELS[distance.argmin(1)]) * x.sign() * scale


def exchanged(sent: list[Tensor], bits: int) -> Tensor:
    """The mean of what replicas send: in 4 bits, then each part of the mean in 4 bits, too."""
    if bits == 32:
        return torch.stack([each.float() for each in sent]).sum(0).double() / len(sent)
    mean = torch.stack([nearest(each) for each in sent]).mean(0)
    return torch.cat([nearest(part) for part in mean.chunk(len(sent))])


def restated(wanted: Job, units: list[list[str]], n: int) -> list[list[Weights]]:
    """Weights of each replica after each step. units: names of the parts that are encoded together."""
    model, knobs = Model(wanted), dict(wanted.technique[1] if wanted.technique else {})
    period, fragments, delay = (int(knobs[name]) for name in ("period", "fragments", "delay"))
    outer, velocity = model.start, {name: 0 * w for name, w in model.start.items()}
    inner, adam, out = [model.start for _ in range(n)], [Adam(wanted, model.start) for _ in range(n)], []
    on_the_way: dict[int, list[tuple[list[str], Tensor]]] = {}  # step of use -> (names, mean)
    for step in range(1, wanted.steps + 1):
        for r in range(n):
            adam[r].step(inner[r], model.gradients(inner[r], step - 1, r, n)[0])
        arriving = on_the_way.pop(step, []) if delay else []
        for number, names in enumerate(units):
            if step % period == {0: 1, 1: 0}[number % fragments] * (period // 2):
                sent = [torch.cat([(outer[k] - inner[r][k]).flatten() for k in names]) for r in range(n)]
                on_the_way.setdefault(step + delay, []).append((names, exchanged(sent, int(knobs["bits"]))))
        for names, mean in arriving if delay else on_the_way.pop(step, []):
            for name, d in zip(names, torch.split(mean, [outer[k].numel() for k in names]), strict=True):
                velocity[name] = 0.9 * velocity[name] + d.view_as(outer[name])
                outer[name] = outer[name] - 0.4 * (d.view_as(outer[name]) + 0.9 * velocity[name])
                for r in range(n):
                    inner[r][name] = 0.5 * inner[r][name] + 0.5 * outer[name] if delay else outer[name].clone()
        out.append([dict(weights) for weights in inner])
    return out


@pytest.mark.parametrize(("bits", "delay", "copy_on_host"), [(32, 0, 0), (4, 2, 1)])
def test_trains_as_restated(bits: int, delay: int, copy_on_host: int) -> None:
    knobs = {"period": 4, "fragments": 2, "delay": delay, "bits": bits, "copy_on_host": copy_on_host}
    wanted = trained_by("diloco", "dp2-mbs1-z0-rnone", knobs, steps=8)
    ran = run(wanted)
    expected = restated(wanted, ran[0].units, 2)
    for step in range(wanted.steps):
        for replica in range(2):
            assert differ(ran[replica].weights[step], expected[step][replica]) < 1e-9, (step, replica)
    (planned,) = planned_bytes(wanted)
    for rank in ran:
        assert rank.sent[0] == planned
        assert sum(rank.given.values()) == planned
        assert set(rank.given) == ({"allreduce_"} if bits == 32 else {"alltoall_base_", "_allgather_base_"})


def test_four_bits_round_to_the_nearest_level() -> None:
    x = torch.cat([torch.linspace(-1, 1, 4001, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)])
    code, scale = E3M0(), torch.ones(1, dtype=torch.float64)
    decoded = code.decode(code.encode(x, scale), scale)
    assert float((decoded - x).abs().max()) <= 0.25
    errors = (x.abs().numpy()[:, None] - LEVELS).__abs__().min(1)
    assert np.allclose((decoded - x).abs().numpy(), errors)
    zeros = torch.zeros(8)
    assert not code.decode(code.encode(zeros, code.scale(zeros)), code.scale(zeros)).any()
