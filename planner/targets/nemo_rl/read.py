"""A config of NeMo-RL's GRPO as the step that it runs: models, batch, placement and degrees.

NeMo-RL 7ea279ab (0.6.0): nemo_rl/utils/config.py (inheritance), nemo_rl/algorithms/grpo.py (split of the GPUs, scores
before training), nemo_rl/models/policy/lm_policy.py (choice of the trainer),
nemo_rl/models/generation/vllm/vllm_generation.py (experts of the engine), grpo_math_1B.yaml and
grpo_math_1B_megatron.yaml of its examples (names and defaults).
"""

from __future__ import annotations

import math
import os.path
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ....errors import did_you_mean, nearest
from ....profiles.io.document import Document, file_error
from ....profiles.io.reader import read_document, read_text
from ..model_names import known_model
from ..option_lists import option_list
from ..post_training.stated import StatedStep, StepConfig
from ..readers.layered import Layers
from .options import OVERRIDES
from .trainer import core_layout, dtensor_layout, most_packed

_POLICY, _CORE, _DTENSOR = "policy.", "policy.megatron_cfg.", "policy.dtensor_cfg."
_GENERATION = "policy.generation."
_ENGINE, _COLOCATED = f"{_GENERATION}vllm_cfg.", f"{_GENERATION}colocated."
_SHARE = f"{_ENGINE}gpu_memory_utilization"
# Blocks whose options are held to the release; others hold data, rewards and logs of users.
_HELD = ("cluster.", "grpo.", _CORE, _DTENSOR, _ENGINE, _COLOCATED)
_NEAR = 0.95  # least similarity of a misspelt option
_WHOLE = "_override_"  # a block with it replaces that of the parent
_ADAPTERS = (f"{_CORE}peft.enabled", f"{_DTENSOR}lora_cfg.enabled")
_UNEVEN = (f"{_CORE}num_layers_in_first_pipeline_stage", f"{_CORE}num_layers_in_last_pipeline_stage")


def read_step(files: Mapping[str, str], given: Sequence[str] = (), model: str | None = None) -> StatedStep:
    """The step of files (path -> text), the last of which changes those before it, and of the parents that they name.
    given: `option=value`; model: in place of its own.

    Raises InputError with all problems: options of another release, wrong values, degrees that divide nothing.
    """
    config, merged = StepConfig(option_list("nemo-rl")[0], file=next(iter(files))), Layers(_WHOLE)
    if all(Path(path).name == OVERRIDES.file for path in files):  # they change the example that has their trainer on
        core = any(_CORE in text for text in files.values())
        merged.add(_option(f"{_CORE}enabled", core, next(iter(files))))
        merged.add(_option(f"{_DTENSOR}enabled", not core, next(iter(files))))
    for path, text in files.items():
        if Path(path).name == OVERRIDES.file:
            options, problems = OVERRIDES.read(text)
            config.problems += problems
            for name, option in options.items():
                merged.add(_option(name, option.value, path, option.line))
        else:
            for document in _family(path, text, files, ()):
                merged.add(document)
    for word in given:
        merged.add(_argument(word))
    whole = Document(next(iter(files)), merged.data)
    config.add_document(whole, lambda path: merged.places.get(path, ("", 0)))
    if not any(name.startswith("grpo.") for name in config.values):
        raise file_error(whole.name, 0, "no block `grpo`", "configs of run_grpo.py are read, with their parents")
    step = _step(config, model)
    if config.problems:
        raise config.error
    return step


def merged(files: Mapping[str, str]) -> Document:
    """The files (path -> text) of a config as one document: the first, and its parents, which may be among the
    others."""
    (path, text), *_ = files.items()
    out = Layers(_WHOLE)
    for document in _family(path, text, files, ()):
        out.add(document)
    return out.document(path)


def _argument(word: str) -> Document:
    """`a.b=value` as a document. Raises InputError for other words."""
    name, equals, text = word.lstrip("+").partition("=")
    if not equals or not name:
        raise file_error("--arg", 0, f"`{word}` sets no option", "--arg policy.model_name=NAME")
    return _option(name, read_document("--arg", text or "''").data, "--arg")


def _option(name: str, value: Any, file: str, line: int = 0) -> Document:
    """One option as a document."""
    for key in reversed(name.split(".")):
        value = {key: value}
    return Document(file, value, line_of=lambda path: line)


def _family(path: str, text: str, files: Mapping[str, str], children: tuple[str, ...]) -> Iterator[Document]:
    """A file and its parents, the eldest first. Raises InputError for a parent that is nowhere, or its own child."""
    document = read_document(path, text)
    if not isinstance(document.data, Mapping):
        raise file_error(path, 0, "no mapping of options")
    named, line = document.data.get("defaults"), document.line(("defaults",))
    parents = [] if named is None else named if isinstance(named, list) else [named]
    for parent in parents:
        if not isinstance(parent, str):
            raise file_error(path, line, f"`{parent}` is no file of a parent", "defaults: FILE, or a list of files",
                             path=("defaults",))  # fmt: skip
        where = os.path.normpath(Path(path).parent / parent)
        if os.path.realpath(where) in map(os.path.realpath, (path, *children)):
            raise file_error(path, line, f"`{parent}` names this file as its parent, too")
        if (given := _given(where, files, (path, *children))) is None:
            raise file_error(path, line, f"`{parent}`: no such file",
                             "name it beside this one; NeMo-RL has it among its examples")  # fmt: skip
        yield from _family(where, given, files, (*children, path))
    own = {key: value for key, value in document.data.items() if key != "defaults"}
    yield Document(document.name, own, line_of=document.line_of)


def _given(where: str, files: Mapping[str, str], children: Sequence[str]) -> str | None:
    """The text of a parent: given with its path, on the disk, or given with its name alone; None: nowhere."""
    exact = next((text for name, text in files.items() if os.path.normpath(name) == where), None)
    if exact is not None or Path(where).is_file():
        return exact if exact is not None else read_text(Path(where))
    return next((text for name, text in files.items()
                 if Path(name).name == Path(where).name and name not in children), None)  # fmt: skip


def _hold(config: StepConfig) -> None:
    """Options that the examples of the release do not have. Recipes of the release have some: those that are spelt
    nearly like one that is read are wrong, and others are named."""
    known, others = config.options.options, list[str]()
    for name, value in config.values.items():
        parents = [name[:at] for at, letter in enumerate(name) if letter == "."]
        if value is None or name in known or not name.startswith(_HELD) or any(
                parent in known and known[parent].kind == "object" for parent in parents):  # fmt: skip
            continue
        if near := nearest(name, config.read, cutoff=_NEAR):
            text = f"NeMo-RL {config.options.version} has no such option in its examples"
            config.fail(name, text, did_you_mean(near))
        else:
            others.append(name)
    if others:
        config.assumed.append(f"not read, since the examples of the release lack them: {', '.join(others)}")


def _step(config: StepConfig, model: str | None) -> StatedStep:
    path = str(config.get(f"{_POLICY}model_name", ""))
    spec = known_model(path if model is None else model)
    if model is None and spec is None:
        config.fail(f"{_POLICY}model_name", f"`{path}` is no model of the catalogue",
                    "name one of its shapes: --model NAME")  # fmt: skip
    core = _on_core(config)
    trainer, rollout, lag = _split(config)
    disaggregated = not config.get(f"{_COLOCATED}enabled", True)
    train = core_layout(config, spec) if core else dtensor_layout(config)
    generate = _engine(config)
    degrees = math.prod(train.get(name, 1) for name in ("tp", "pp", "cp"))
    config.divides(trainer, degrees, "train", *(
        [f"{_CORE}{name}_parallel_size" for name in ("tensor_model", "pipeline_model", "context")] if core else
        [f"{_DTENSOR}{name}_parallel_size" for name in ("tensor", "context")]))  # fmt: skip
    config.divides(rollout, generate["tp"] * generate["pp"] * generate["attention_dp"], "generate",
                   *(f"{_ENGINE}{name}_parallel_size" for name in ("tensor", "pipeline", "expert")))  # fmt: skip
    backend = str(config.get(f"{_GENERATION}backend", "vllm"))
    if backend != "vllm":
        config.fail(f"{_GENERATION}backend", f"`{backend}` is not planned", "known: vllm")
    fields = {"model": model or (spec.name if spec is not None else ""), "engine": "vllm", "lag": lag,
              "trainer": "megatron" if core else "torchtitan", "workload": "grpo", "reward": "rule", **_batch(config),
              "kl": config.get("loss_fn.reference_policy_kl_penalty", 0.01) > 0}  # fmt: skip
    first, share = not config.get("loss_fn.force_on_policy_ratio", False), config.share(_SHARE, 0.6)
    row_tokens = config.count(f"{_POLICY}max_total_sequence_length", 512)
    packed_tokens = most_packed(config, row_tokens)
    _beside(config)
    _hold(config)
    return StatedStep(fields=fields, train=train, generate=generate, trainer_gpus=trainer, rollout_gpus=rollout,
                      disaggregated=disaggregated, old_logprobs=first, memory_share=share, memory_option=_SHARE,
                      row_tokens=row_tokens, packed_tokens=packed_tokens,
                      options=len(config.read), assumed=tuple(config.assumed))  # fmt: skip


def _on_core(config: StepConfig) -> bool:
    """Whether Megatron-Core trains: exactly one of the two trainers is switched on."""
    names = f"{_CORE}enabled", f"{_DTENSOR}enabled"
    core, dtensor = (config.get(name, False) for name in names)
    if core == dtensor:
        given = next((name for name in names if name in config.places), names[0])
        config.fail(given, f"{'both' if core else 'none'} of {' and '.join(names)} {'are' if core else 'is'} true",
                    "set one of them to true")  # fmt: skip
    return bool(core)


def _engine(config: StepConfig) -> dict[str, int]:
    """Degrees of an engine. Experts are divided over copies of attention."""
    tp, pp, ep = (config.count(f"{_ENGINE}{name}_parallel_size", 1) for name in ("tensor", "pipeline", "expert"))
    if ep > 1 and ep % tp:
        config.fail(f"{_ENGINE}expert_parallel_size", f"{ep} is no multiple of tensor_parallel_size, {tp}")
    return {"tp": tp, "pp": pp, "attention_dp": max(ep // tp, 1), "ep": ep}


def _split(config: StepConfig) -> tuple[int, int, int]:
    """GPUs that train, GPUs that generate, and the steps that answers may be old."""
    nodes, per_node = config.count("cluster.num_nodes", 1), config.count("cluster.gpus_per_node", 1)
    gpus, name = nodes * per_node, f"{_COLOCATED}enabled"
    lag = config.count("grpo.async_grpo.max_trajectory_age_steps", 1)
    lag = lag if config.get("grpo.async_grpo.enabled", False) else 0
    if config.get(name, True):
        if lag:
            config.fail("grpo.async_grpo.enabled", "an asynchronous engine on the GPUs that train is not planned",
                        f"{name}=false with {_COLOCATED}resources")  # fmt: skip
        return gpus, gpus, 0
    # On one node some of its GPUs generate, on several whole nodes do (grpo.py, setup).
    resource = f"{_COLOCATED}resources.{'gpus_per_node' if nodes == 1 else 'num_nodes'}"
    number = config.get(resource, 0)
    rollout = number * (1 if nodes == 1 else per_node) if type(number) is int else 0
    if not 0 < rollout < gpus:
        config.fail(resource, f"`{number}`, with {nodes} nodes of {per_node} GPUs", "leave GPUs for both sides")
        return gpus, gpus, lag
    return gpus - rollout, rollout, lag


def _batch(config: StepConfig) -> dict[str, Any]:
    prompts = config.count("grpo.num_prompts_per_step", 32)
    samples = config.count("grpo.num_generations_per_prompt", 16)
    name = f"{_POLICY}train_global_batch_size"
    batch = config.count(name, 512)
    if not config.miscounted and prompts * samples % batch:
        config.fail(name, f"{prompts} x {samples} answers of a step are no multiple of {batch}",
                    "a divisor of the answers of a step")  # fmt: skip
        batch = prompts * samples
    return {"prompts": prompts, "samples": samples, "updates": prompts * samples // batch}


def _beside(config: StepConfig) -> None:
    """Switches of training that no step of a plan has."""
    experts = f"{_DTENSOR}expert_parallel_size"
    if config.values.get(experts) not in (None, 1):
        config.fail(experts, "experts over the ranks of Automodel are not planned",
                    "policy.megatron_cfg divides experts, too")  # fmt: skip
    for name in _ADAPTERS:
        if config.get(name, False):
            config.fail(name, "adapters are not planned", f"{name}=false shows the step of all weights")
    fp8 = f"{_CORE}fp8_cfg.enabled"
    if config.get(fp8, False):
        config.assumed.append(f"{fp8}: training in fp8 is priced in bf16")
    if (precision := str(config.get(f"{_ENGINE}precision", "bfloat16"))) != "bfloat16":
        config.assumed.append(f"{_ENGINE}precision {precision}: the engine is priced in bf16")
    if any(config.get(name, None) is not None for name in _UNEVEN):
        config.assumed.append(f"{_UNEVEN[0]} and {_UNEVEN[1].rpartition('.')[2]}: priced with even stages")
    if config.get("policy.draft.enabled", False):
        config.assumed.append("policy.draft.enabled: answers are priced without a draft model")
