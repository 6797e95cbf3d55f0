"""Names of requests to serve and to post-train that no catalogue has: all at once, with their lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.request.load import load_any_request
from meshwright.planner.request.reinforcement import RlRequest
from meshwright.planner.request.serving import ServingRequest
from meshwright.planner.request.serving_references import ServingReferences
from meshwright.planner.workflows.resolve import rl_problem_of

from meshwright.errors import InputError

SERVING = """model: llama-3.1-8x
cluster: dgx-h100x:1
target: vlm
workload: {kind: serve, input: 1000, output: 200, rate: 2/s,
           speculate: "3:0.7:llama-3.2-1x"}
"""
POST_TRAINING = """model: llama-3.1-8x
cluster: dgx-h100x:1
target: verk
trainer: megatrom
engine: vlm
workload:
  {kind: rl, algorithm: ppo, output: 200,
   critic: llama-3.2-1x,
   reward: llama-3.2-3x}
"""


def resolved(request: object) -> None:
    if isinstance(request, RlRequest):
        rl_problem_of(request)
    elif isinstance(request, ServingRequest):
        ServingReferences.of(request)


def told(text: str, folder: Path) -> list[str]:
    """The problems of a request, up to the name that is unknown."""
    path = folder / "request.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        resolved(load_any_request(path))
    lines = caught.value.details.get("problems") or [caught.value.message]
    return [line.removeprefix(f"{path}, ").partition(": unknown ")[0] for line in lines]


def test_of_a_request_to_serve(tmp_path: Path) -> None:
    assert told(SERVING, tmp_path) == ["line 1, model", "line 3, target", "line 2, cluster",
                                       "line 5, workload.speculate"]  # fmt: skip


def test_of_a_request_to_post_train(tmp_path: Path) -> None:
    assert told(POST_TRAINING, tmp_path) == [
        "line 1, model", "line 2, cluster", "line 3, target", "line 4, trainer", "line 5, engine",
        "line 8, workload.critic", "line 9, workload.reward"]  # fmt: skip


def test_one_alone_keeps_its_line(tmp_path: Path) -> None:
    text = POST_TRAINING.replace("8x", "8b").replace("h100x", "h100").replace("verk", "verl").replace("trom", "tron")
    assert told(text.replace("vlm", "vllm").replace("1x", "1b"), tmp_path) == ["line 9, workload.reward"]

