"""Models of Megatron-LM's examples/multimodal/train.py (LLaVAModel), which are read and not written.

Megatron-LM d98e8a64: examples/multimodal/model.py, examples/multimodal/config.py, nvlm/internvit.py, core/models/vision
and core/models/multimodal; examples/llava_mcore/pretrain_llava.py of Pai-Megatron-Patch a098ca5a. The tower is split
over the ranks of tensor parallelism and is on the first stage, beside the embedding. --language-model-type sets more of
the language model than its name: whatever the options are, its blocks are those of the named one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ....errors import FieldProblem
from ..argv import Arguments
from ..option_lists import Option
from ..options import Entry, Facts, NoCounterpartError, Settings

# The setting that holds the facts of such a program.
SEES = "multimodal"
_PROGRAMS = re.compile(r"(^|.*/)(multimodal/train|pretrain_llava)\.py")
_FLAGS = ("--freeze-LM", "--freeze-ViT", "--disable-vision-class-token", "--use-tiling", "--use-thumbnail",
          "--pixel-shuffle", "--use-tile-tags", "--recompute-vision")  # fmt: skip
_NUMBERS = ("--max-num-tiles", "--num-frames", "--dataloader-seq-length", "--packing-buffer-size",
            "--encoder-tensor-model-parallel-size", "--encoder-pipeline-model-parallel-size")  # fmt: skip
_WORDS = ("--language-model-type", "--vision-model-type", "--vision-projection-type")
OPTIONS: Mapping[str, Option] = {
    **{name: Option(name, "flag") for name in _FLAGS}, **{name: Option(name, "int") for name in _NUMBERS},
    **{name: Option(name, "str") for name in _WORDS},
}  # fmt: skip
# Regular expression of them: their effect with another program.
EFFECTS: Mapping[str, str] = {
    r"--(img|patch-dim|vision(?!.config$)|swin|num-classes|num-channels|language-model-type|freeze-(ViT|LM)).*":
        "a vision model beside the decoder",
    r"--(use-tiling|use-thumbnail|pixel-shuffle|use-tile-tags|recompute-vision|max-num-tiles|num-frames)":
        "a vision model beside the decoder",
    r"--dataloader-seq-length|--packing-buffer-size": "the dataloader sets the sequences",
    r"--encoder-(tensor|pipeline)-model-parallel-size": "an encoder with degrees of its own",
}  # fmt: skip

_CLIP = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
# --vision-model-type -> the tower in the words of a config.json (get_vision_model_config).
_TOWERS: Mapping[str, Mapping[str, Any]] = {
    "clip": {"model_type": "clip", "vision_config": _CLIP},
    "internvit": {"model_type": "internvl", "pads_heads": True, "vision_config": {
        "hidden_size": 3200, "num_hidden_layers": 45, "num_attention_heads": 25, "intermediate_size": 12800,
        "use_qk_norm": True, "norm_type": "rms_norm"}},
    "internvit300M": {"model_type": "internvl", "vision_config": {**_CLIP, "attention_bias": True}},
}  # fmt: skip
_INHERITED = ""  # a norm as --normalization has it
# --language-model-type -> --ffn-hidden-size, whether queries, keys and values have biases, the rows of the table of its
# tokenizer (config.json of the model), the width between the products of the projector, their norm and their biases.
_LANGUAGES: Mapping[str, tuple[int, bool, int, int, str, bool]] = {
    "mistral_7b": (14336, False, 32768, 14336, "none", False),
    "llama3_8b": (14336, False, 128256, 14336, _INHERITED, False),
    "llama3.1_8b": (14336, False, 128256, 4096, "layer", True),
    "llama3.2_1b": (8192, False, 128256, 2048, "layer", False),
    "yi-34b": (20480, False, 64000, 20480, "layer", False),
    "qwen2.0_72B": (29568, True, 152064, 29568, "layer", False),
    "qwen2.5_7B": (18944, True, 152064, 3584, _INHERITED, False),
    "qwen2.5_72B": (29568, True, 152064, 29568, "layer", False),
}
_SIZES = {"--img-h", "--img-w", "--patch-dim", "--decoder-seq-length"}


def sees(program: str) -> bool:
    """Whether a program trains a language model with a vision tower that is read here."""
    return bool(_PROGRAMS.fullmatch(program))


def modernise(arguments: Arguments) -> None:
    """Moves the options of these programs into one setting; what has no counterpart in a plan becomes a gap."""
    given = arguments.settings
    if not sees(arguments.program):
        return
    language, vision = given.get("--language-model-type"), given.get("--vision-model-type", "clip")
    for option, text in _cannot(given, language, vision).items():
        arguments.gaps.append(_problem(arguments, option, text))
    parts: dict[str, Any] = {name: given.pop(name) for name in (*OPTIONS, *_SIZES) if name in given}
    known = all(parts.get(name) for name in _SIZES)
    for name in sorted(_SIZES - {option for option in parts if parts[option]}):
        if not any(doubt.field == name for doubt in arguments.unclear):
            hint = "tokens of the language model" if name == "--decoder-seq-length" else "pixels of a side"
            arguments.problems.append(_problem(arguments, name, "the program needs it")._replace(hint=hint))
    given.pop("--seq-length", None)  # tokens of an image, which the program counts itself
    if (decoder := "--decoder-seq-length") in parts:
        given["--seq-length"] = parts[decoder]
        arguments.lines["--seq-length"] = arguments.lines.get(decoder, 0)
        arguments.files["--seq-length"] = arguments.files.get(decoder, "")
    if language in _LANGUAGES and vision in _TOWERS and known:
        _as_named(arguments, str(language))
        given[SEES] = parts
        arguments.notes.append(_noted(parts))


def _cannot(given: Settings, language: Any, vision: Any) -> dict[str, str]:
    """Option -> why a plan cannot hold it."""
    recomputes = given.get("--recompute-granularity") or given.get("--recompute-activations")
    whole = given.get("--recompute-granularity") == "full"
    trains = not given.get("--freeze-ViT")
    reasons = {
        "--language-model-type": (f"`{language}` is none of {', '.join(_LANGUAGES)}",
                                  language is not None and language not in _LANGUAGES),
        "--vision-model-type": (f"no formulas for the tower `{vision}`: known are {', '.join(_TOWERS)}",
                                vision not in _TOWERS),
        "--vision-projection-type": ("a projector of one product",
                                     given.get("--vision-projection-type", "mlp") != "mlp"),
        "--img-w": ("images that are no squares", given.get("--img-h") != given.get("--img-w")),
        "--disable-vision-class-token": ("without it, the class token of each image becomes a token of the language "
                                         "model", not given.get("--disable-vision-class-token")),
        "--packing-buffer-size": ("samples of which several fill a sequence: their images are not in the script",
                                  bool(given.get("--packing-buffer-size"))),
        "--recompute-granularity": ("recomputation of the language model alone, beside a tower that trains",
                                    trains and bool(recomputes) and not given.get("--recompute-vision")),
        "--recompute-vision": ("recomputation of single modules in a tower",
                               trains and bool(given.get("--recompute-vision")) and bool(recomputes) and not whole),
    }  # fmt: skip
    found = {option: text for option, (text, applies) in reasons.items() if applies}
    for part in ("tensor", "pipeline"):
        if given.get(option := f"--encoder-{part}-model-parallel-size"):
            found[option] = "a tower with degrees of its own, on ranks of its own"
    return found


def _as_named(arguments: Arguments, language: str) -> None:
    """The blocks of a named language model: SwiGLU without biases, norms whose weights are not offset by one."""
    given = arguments.settings
    inner, qkv_bias, vocab, *_ = _LANGUAGES[language]
    for option, value in (("--ffn-hidden-size", inner), ("--swiglu", True), ("--disable-bias-linear", True),
                          ("--add-qkv-bias", qkv_bias)):  # fmt: skip
        if option in given and given[option] != value:
            arguments.notes.append(f"{option} {given[option]}: --language-model-type {language} makes it {value}")
        given[option] = value
    if given.pop("--apply-layernorm-1p", None):
        arguments.notes.append(f"--apply-layernorm-1p: --language-model-type {language} turns it off")
    if not given.keys() & {"--vocab-size", "--padded-vocab-size"}:
        given["--vocab-size"] = vocab
        arguments.notes.append(f"the vocabulary is the tokenizer's: the {vocab:,} of {language} taken")


def _tiles(parts: Settings) -> int:
    """The most tiles of a sequence (model.py, max_num_image_embeddings)."""
    tiles = parts.get("--max-num-tiles", 1) + int(bool(parts.get("--use-thumbnail")))
    return int(max(tiles, parts.get("--num-frames", 1)))


def _noted(parts: Settings) -> str:
    tiles, side = _tiles(parts), parts["--img-h"]
    return (f"images are those of the data: {tiles} of {side} x {side} pixels per sequence taken, the most that the "
            "options allow, in sequences of --decoder-seq-length tokens")  # fmt: skip


def _problem(arguments: Arguments, name: str, text: str) -> FieldProblem:
    return FieldProblem(text, name, arguments.files.get(name, ""), arguments.lines.get(name, 0))


def _read(settings: Settings, facts: Facts) -> Facts:
    if (parts := settings.get(SEES)) is None:
        return {}
    side, patch = parts["--img-h"], parts["--patch-dim"]
    merge = 2 if parts.get("--pixel-shuffle") else 1
    if side % patch or side // patch % merge:
        raise NoCounterpartError(f"--img-h {side}: no multiple of {merge} x --patch-dim {patch}")
    vision, language = parts.get("--vision-model-type", "clip"), parts["--language-model-type"]
    *_, width, norm, bias = _LANGUAGES[language]
    inherited = "layer" if facts.get("model.norm_bias") else "rms"
    tower, hidden = _TOWERS[vision], facts.get("model.hidden", 0)
    sized = {**tower["vision_config"], "image_size": side, "patch_size": patch}
    frozen = {"--freeze-ViT": "workload.freeze_tower", "--freeze-LM": "workload.freeze_language"}
    return {
        "model.name": f"{language} with {vision}",
        "model.tower": {
            **tower, "vision_config": sized, "text_config": {"hidden_size": hidden},
            "output_size": hidden, "downsample_ratio": 1 / merge, "projector_size": width,
            "projector_norm": norm or inherited, "projector_bias": bias,
        },
        "workload.images": f"{_tiles(parts)}@{side}x{side}",
        **{field: True for option, field in frozen.items() if parts.get(option)},
    }  # fmt: skip


def compared_fields(facts: Facts) -> dict[str, Any] | None:
    """The fields that layouts are compared with, for a model that no target writes; None for another model."""
    return {"schedule": "1f1b", "offload": facts["offload"]} if "model.tower" in facts else None


ENTRY = Entry(("model.tower", "workload.images", "workload.freeze_tower", "workload.freeze_language"),
              (SEES, "--img-h", "--img-w", "--patch-dim"), lambda setup: {}, _read)  # fmt: skip
