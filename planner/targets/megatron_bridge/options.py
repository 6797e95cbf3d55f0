"""Plan <-> fields of Megatron-Bridge's ConfigContainer, both ways.

Bridge configures the same core as pretrain_gpt.py. The table of Megatron (megatron/options.py) therefore writes and
reads each decision of a plan; fields.py translates its arguments to fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ....cost_models.cuda_graphs import GRAPH_CODE
from ....errors import InputError
from ..config_modules import HUB_MODEL
from ..megatron import options as megatron
from ..megatron.conflicts import conflicts_of_the_core
from ..megatron.delta_net import has_delta_nets
from ..megatron.hybrid import is_hybrid
from ..megatron.muon import LAYER_WISE, by_flag, with_layer_wise_name
from ..options import Entry, Facts, NoCounterpartError, Settings, Table
from ..setup import Setup
from . import fusions, hybrid, peft, vision, wan
from .fields import BESIDE, BY_ARGUMENT, MODELS, field_of, renamed, to_arguments, to_fields
from .vision_classes import VARIANT_SPEC

_REDUCES_IN_FP32 = "mixed_precision.grad_reduce_in_fp32"
# Argument of pretrain_gpt.py -> field of CommOverlapConfig.
_OVERLAPS = {f"--{name.replace('_', '-')}": f"comm_overlap.{name}" for name in (
    "overlap_grad_reduce", "overlap_param_gather", "tp_comm_overlap", "overlap_moe_expert_parallel_comm",
    "delay_wgrad_compute")}  # fmt: skip


def _translated(entry: Entry) -> Entry:
    """The entry of Megatron's table in Bridge's names."""
    fields = [field for option in entry.options if option in BY_ARGUMENT for field in BY_ARGUMENT[option].fields]
    fields += [BESIDE[option] for option in entry.options if option in BESIDE]
    if "--bf16" in entry.options:
        parts = ("params_dtype", "pipeline_dtype", "grad_reduce_in_fp32")
        fields += ["mixed_precision", *(f"mixed_precision.{part}" for part in parts)]
    fields += [_OVERLAPS[option] for option in entry.options if option in _OVERLAPS]

    def write(setup: Setup) -> Settings:
        arguments = vision.with_sections(_counted(entry.write(setup), setup), setup)
        out = vision.as_planned(to_fields(with_layer_wise_name(arguments, setup)), entry.options, setup)
        out = wan.as_planned(out, setup)
        if "--bf16" in entry.options and setup.switches.get("grad_reduce_dtype") == "bf16":
            out.pop(_REDUCES_IN_FP32, None)  # the entry of that switch writes it
        return out

    def read(settings: Settings, facts: Facts) -> Facts:
        try:
            return _beside_a_recipe(entry.read(to_arguments(settings), facts), settings, facts)
        except InputError as error:
            kind = NoCounterpartError if isinstance(error, NoCounterpartError) else InputError
            raise kind(renamed(error.message), hint=renamed(error.hint or "")) from None

    companions = {field for option in entry.companions if option in BY_ARGUMENT for field in BY_ARGUMENT[option].fields}
    return Entry(entry.fields, tuple(dict.fromkeys(fields)), write, read, frozenset(companions))


def _beside_a_recipe(read: Facts, settings: Settings, facts: Facts) -> Facts:
    """The facts of a config that leaves the sizes of its model to a recipe or to the Hub: the degrees of experts are
    those stated, and a precision that is not stated is the recipe's."""
    if "model.num_layers" in settings:
        return read
    ep, etp = (settings.get(f"model.expert_{name}_parallel_size") for name in ("model", "tensor"))
    if "ep" in read and ep and ep > 1:
        return {**read, "ep": ep, "etp": etp or facts.get("tp", 1)}
    stated = any(name.startswith("mixed_precision") for name in settings)
    return {} if read == {"precision": "fp32"} and not stated else read


def _counted(arguments: Settings, setup: Setup) -> Settings:
    """The number of virtual stages, where Megatron has layers per virtual stage. Bridge needs it with a layout, too."""
    of_layers = "--num-layers-per-virtual-pipeline-stage"
    if of_layers in arguments or (setup.layout.vpp > 1 and "--pipeline-model-parallel-layout" in arguments):
        others = {name: value for name, value in arguments.items() if name != of_layers}
        return {**others, "--num-virtual-stages-per-pipeline-rank": setup.layout.vpp}
    return arguments


def _messages_write(setup: Setup) -> Settings:
    """Overlap of pipeline messages in interleaved stages, which is the default of pretrain_gpt.py."""
    if setup.layout.vpp == 1:
        return {}
    return {"model.overlap_p2p_comm": True, "model.batch_p2p_comm": False}


# The default spec of GPTModelProvider builds uniform layers with plain attention. This one reads the config per layer.
BLOCK_SPEC = "partial(get_gpt_decoder_block_spec, use_transformer_engine=True)"
_SPEC = "model.transformer_layer_spec"


def _spec_write(setup: Setup) -> Settings:
    kinds = setup.model.kinds
    if is_hybrid(setup.model) or vision.sees(setup):  # their classes build layers by a spec of their own
        return {}
    if has_delta_nets(setup.model):
        return {_SPEC: VARIANT_SPEC}
    mixed = len({kind.is_moe for kind in kinds}) > 1 or any(attention.is_mla for attention in setup.model.attentions)
    return {_SPEC: BLOCK_SPEC} if mixed else {}


# Fields of YaRN in latent attention without an argument of pretrain_gpt.py -> their name in the explicit form.
_LATENT_YARN = {f"model.{name}": name for name in ("beta_fast", "beta_slow", "original_max_position_embeddings")}


def _latent_yarn_write(setup: Setup) -> Settings:
    scaling = setup.model.trained_scaling
    if scaling is None or not setup.model.attentions[0].is_mla:
        return {}
    values = (scaling.beta_fast, scaling.beta_slow, scaling.original_max_positions)
    return dict(zip(_LATENT_YARN, values, strict=True))


def _latent_yarn_read(settings: Settings, facts: Facts) -> Facts:
    given = {name: settings[field] for field, name in _LATENT_YARN.items() if field in settings}
    scaling = facts.get("model.rope_scaling")
    return {"model.rope_scaling": {**scaling, **given}} if scaling and given else {}


# With a graph of the iteration Megatron-FSDP keeps its gradients in place and gathers no weights before the iteration.
# In pretrain_gpt.py the graph alone turns both on (Megatron-LM d98e8a64, megatron/training/training.py,
# get_megatron_ddp_config).
_GRAPHED = {"ddp.megatron_fsdp_cuda_graph_mode": True, "ddp.fsdp_all_gather_in_start_param_sync": False}


def _graphed_write(setup: Setup) -> Settings:
    graphed = setup.layout.zero >= 2 and setup.layout.cuda_graphs == GRAPH_CODE["full_iteration"]
    return dict(_GRAPHED) if graphed else {}


TABLE = Table((
    *(_translated(entry) for entry in megatron.TABLE.entries),
    *hybrid.ENTRIES,
    peft.ENTRY,
    Entry(("model.rope_scaling",), tuple(_LATENT_YARN), _latent_yarn_write, _latent_yarn_read),
    Entry(("model_name",), (HUB_MODEL,), lambda setup: {},
          lambda settings, facts: {"model_name": settings[HUB_MODEL]} if HUB_MODEL in settings else {}),
    Entry(("model.kinds",), (_SPEC,), _spec_write, lambda settings, facts: {}),
    Entry(("cuda_graphs",), tuple(_GRAPHED), _graphed_write, lambda settings, facts: {}),
    fusions.ENTRY,
    *vision.ENTRIES,
    wan.ENTRY,
    Entry(("stack",), ("model.overlap_p2p_comm", "model.batch_p2p_comm"), _messages_write, lambda settings, facts: {}),
))  # fmt: skip


def conflicts(settings: Settings, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Rules on combinations of fields: those of the core, and those that Bridge checks late."""
    known = {name for name in settings if "." in name}
    out = [
        (name if name.isupper() else _given(name, known), renamed(text))
        for name, text in conflicts_of_the_core(by_flag(to_arguments(settings)), environment)
    ]
    lengths = {settings[name] for name in ("model.seq_length", "dataset.seq_length") if name in settings}
    if len(lengths) > 1:
        out.append(("dataset.seq_length", f"is {settings['dataset.seq_length']}, model.seq_length "
                                          f"{settings['model.seq_length']}"))  # fmt: skip
    if settings.get("model") == MODELS[False]:
        latent = ("model.kv_lora_rank", "model.q_lora_rank", "model.qk_head_dim", "model.v_head_dim")
        out += [(name, f"is a field of {MODELS[True]}") for name in latent if name in settings]
    if (settings.get("model") == MODELS[True]) != bool(settings.get("model.multi_latent_attention")):
        text = f"goes with {MODELS[True]}, which leaves it False by itself"
        out += [("model.multi_latent_attention", text)] if settings.get("model") in MODELS.values() else []
    differ = ["model.moe_layer_freq"] if isinstance(settings.get("model.moe_layer_freq"), list) else []
    differ += ["model.multi_latent_attention"] if settings.get("model.multi_latent_attention") else []
    if differ and _SPEC not in settings and settings.get("model") in MODELS.values():
        out.append((differ[0], f"needs {_SPEC}={BLOCK_SPEC}: the default builds plain layers, all alike"))
    variant = "model.experimental_attention_variant"
    if variant in settings and settings.get(_SPEC, vision.spec_of(settings)) != VARIANT_SPEC:
        out.append((variant, f"needs {_SPEC}={VARIANT_SPEC}: other specs build attention alone"))
    if settings.get("mixed_precision.fp16") and settings.get("mixed_precision.fp8"):
        out.append(("mixed_precision.fp8", "needs mixed_precision.bf16"))
    if str(settings.get("optimizer.optimizer")) in ("muon", LAYER_WISE):
        shares = (f"{section}.use_distributed_optimizer" for section in ("ddp", "optimizer"))
        text = f"goes with adam; {LAYER_WISE} shares the states of muon"
        out += [(name, text) for name in shares if settings.get(name)]
    return out + hybrid.conflicts(settings) + vision.conflicts(settings) + wan.conflicts(settings) + _virtual(settings)


def _given(argument: str, known: set[str]) -> str:
    """The field of an argument that the config sets."""
    twin = BY_ARGUMENT.get(argument)
    fields = twin.fields if twin is not None else ()
    return next((field for field in fields if field in known), field_of(argument))


def _virtual(settings: Settings) -> list[tuple[str, str]]:
    """Problems of virtual stages. Bridge asserts on every rank that they divide the layers of a stage."""
    name = "model.virtual_pipeline_model_parallel_size"
    count, pp = settings.get(name), settings.get("model.pipeline_model_parallel_size", 1)
    layers = settings.get("model.num_layers", 0)
    if count is None or pp < 1:
        return []
    if count < 1:
        return [(name, f"`{count}` is not 1 or more")]
    if pp == 1:
        return [(name, "needs a pipeline: model.pipeline_model_parallel_size is 1")]
    if (layout := settings.get("model.pipeline_model_parallel_layout")) is not None:
        stages = str(layout).count("|") + 1
        wrong = f"is {count}, model.pipeline_model_parallel_layout has {stages} stages for pp {pp}"
        return [(name, wrong)] if stages != count * pp else []
    uneven = [field for field in settings if re.search(r"account_for_|_in_(first|last)_pipeline_stage", field)]
    if not uneven and layers and (layers % pp or layers // pp % count):
        return [(name, f"{layers} layers over pp {pp} are {layers / pp:g} a stage, no multiple of {count}")]
    return []
