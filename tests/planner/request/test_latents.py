"""Images and videos of diffusion transformers in a request: their tokens, what they need, and plans with them."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.cli.screens.header import header
from meshwright.planner import api
from meshwright.planner.document.specs import model_of, workload_of
from meshwright.planner.request.load import load_request, request_from_dict, request_to_dict
from meshwright.planner.request.model_reference import text_model
from meshwright.planner.request.resolve import resolve
from meshwright.planner.targets.emit import check_trained
from meshwright.planner.targets.registry import TARGETS

from meshwright.errors import InputError, UnsupportedError


def asked(model: str = "flux.1-dev", images: Any = "1@1024x1024", **fields: Any) -> dict[str, Any]:
    return {"model": model, "cluster": "aws-p5.48xlarge:2", "images": images, "global_batch": 16, "target": "any",
            **fields}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "images", "tokens"),
    [("flux.1-dev", "1@512x768", 32 * 48 + 512), ("wan2.1-t2v-14b", "1@720x1280x81", 21 * 45 * 80),
     ("wan2.1-t2v-14b", "1@480x832x1", 30 * 52), ("dit-xl-2-256", "1@256x256", 256)],
)  # fmt: skip
def test_tokens_follow_from_the_size(model: str, images: str, tokens: int) -> None:
    assert resolve(load_request(None, asked(model, images))).workload.seq_len == tokens


def test_a_batch_is_a_power_of_two_of_images() -> None:
    assert resolve(load_request(None, asked(global_batch=None))).workload.global_batch == 1024  # 910.2 of 4,608 tokens


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"images": None}, "flux.1-dev denoises images of any size, and none is given"),
        ({"images": "1"}, "none is given"),
        ({"images": "2@512x512"}, "2 per sequence, and flux.1-dev denoises one"),
        ({"images": "1@500x512"}, "height 500 is no multiple of the 16 pixels of a token"),
        ({"images": "1@512x512x9"}, "9 frames, and flux.1-dev denoises images"),
        ({"model": "wan2.1-t2v-14b", "images": "1@480x832"}, "no number of frames is given"),
        ({"model": "wan2.1-t2v-14b", "images": "1@480x832x80"}, "80 frames are not 1 and a multiple of 4"),
        ({"images": "1@32768x32768"}, "more than the 1,048,576 that are planned"),
        ({"seq_len": 4096}, "seq_len: it follows from the size"),
        ({"lora": 8}, "adapters are not priced"),
        ({"source_len": 8, "optimizer": "muon"}, "source_len: its text has a length of its own; optimizer muon"),
        ({"model": "qwen3-vl-8b", "images": "1@512x512x8", "seq_len": 4096}, "whose rate is not given"),
        ({"images": "1@512x512x8x2"}, "`512x512x8x2` is no height x width"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], text: str) -> None:
    given = {name: value for name, value in {**asked(), **fields}.items() if value is not None}
    with pytest.raises(InputError) as caught:
        resolve(load_request(None, given))
    assert text in caught.value.message
    assert caught.value.hint or "\n" in caught.value.message or "images:" in caught.value.message


def test_a_plan_holds_the_model_and_its_images() -> None:
    plan = api.evaluate(None, "pp2-dp8-mbs1-z1-rfull", **asked("wan2.1-t2v-14b", "1@480x832x17"))
    model, workload = model_of(plan.resolved, "plan"), workload_of(plan.resolved, "plan")
    assert model == resolve(request_from_dict(plan.request)).model
    assert model.diffusion is not None
    assert workload.images is not None
    assert (workload.images.num_frames, workload.source_len, workload.seq_len) == (17, 512, 5 * 30 * 52)
    assert request_to_dict(request_from_dict(plan.request)) == plan.request


@pytest.mark.parametrize(
    ("model", "images", "text"),
    [("wan2.1-t2v-14b", "1@480x832x17", "512 tokens of text per sequence, 17 frames of"),
     ("flux.1-dev", "1@1024x1024", "bf16, images of")],
)  # fmt: skip
def test_the_header_has_the_text_that_tokens_attend_to(model: str, images: str, text: str) -> None:
    plan = api.evaluate(None, "dp16-mbs1-z3-rfull", **asked(model, images))
    assert text in header(plan).replace("\n", " ")


def test_no_target_drops_the_diffusion() -> None:
    plan = api.evaluate(None, "dp16-mbs1-z3-rfull", **asked())
    assert {name: reason for name, reason in plan.candidates[0].targets.items() if reason is None} == {}
    for name, target in TARGETS.items():
        if target.trainer is not None:
            with pytest.raises(UnsupportedError, match=r"model\.diffusion"):
                check_trained(plan, name)


def test_only_training_is_priced() -> None:
    with pytest.raises(UnsupportedError, match="is a diffusion transformer: only its training is priced"):
        text_model("flux.1-dev")
    with pytest.raises(InputError, match="of diffusion transformers"):
        api.plan(**asked(), layers="own")
