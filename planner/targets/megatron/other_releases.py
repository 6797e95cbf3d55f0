"""Options of other releases and forks than the recorded ones, decided by what their source does with each.

Sources: all tags of NVIDIA/Megatron-LM from v1.0 to core_v0.19.0 and main of August 2026,
megatron/training/arguments.py and its readers; deepspeedai/Megatron-DeepSpeed, bigscience-workshop/Megatron-DeepSpeed,
argonne-lcf/Megatron-DeepSpeed, alibaba/Pai-Megatron-Patch a098ca5a (megatron_patch/arguments.py, model/qwen2/moe),
HabanaAI/Megatron-LM, HabanaAI/Megatron-DeepSpeed, swiss-ai/Megatron-LM, Ascend/MindSpeed 028de58c, Ascend/AscendSpeed,
HYGON-AI/Megatron-LM-das (hcu_megatron), FlagOpen/FlagScale release/v0.2 (megatron/megatron/arguments.py),
EleutherAI/megatron-3d (megatron/training.py), uw-mad-dash/MCBench, AIS-SNU/Optimus-CC, jindajia/Megatron-LM,
LydiaXiaohongLi/Megatron-DeepSpeed (--no-bias, --activation),
genggui001/Megatron-DeepSpeed-Llama (megatron/model/llama_model.py).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from ..argv import Arguments
from ..option_lists import Option

# Name of a fork or of an older release -> today's, with the same value.
RENAMED = {
    "--use-custom-fsdp": "--use-megatron-fsdp", "--decoder-tp-comm-overlap": "--tp-comm-overlap",
    "--use-mistral-rotary-position-embeddings": "--use-rotary-position-embeddings", "--rotary-theta": "--rotary-base",
    "--moe-topk": "--moe-router-topk", "--rotary-scale-factor": "--rotary-seq-len-interpolation-factor",
    "--pipe-parallel-size": "--pipeline-model-parallel-size", "--no-bias": "--disable-bias-linear",
    "--apply-layernorm-weight-plus-one": "--apply-layernorm-1p",
    "--activation": "--activation-func-type",
}  # fmt: skip
# Option -> the type of its value, the value at which it changes nothing, and its effect at any other.
_NEUTRAL: Mapping[str, tuple[str, Any, str]] = {
    "--remote-device": ("str", "none", "weights are made on the host"),
    "--num-seq-splits": ("int", 1, "sequences in parts, by another schedule"),
    "--seq1f1b-splits": ("int", 1, "sequences in parts, by another schedule"),
    "--pipe-sp-splits": ("int", 1, "sequences in parts, by another schedule"),
    "--ampipe-degree": ("int", 1, "attention and experts in turns"),
    "--moe-num-capacity-bins": ("int", 0, "experts padded to one of several capacities"),
    "--moe-capacity-bins-num": ("int", 0, "experts padded to one of several capacities"),
    "--schedule-method": ("str", "vanilla", "another schedule"),
    "--output-layer-slice-num": ("int", 1, "a head in slices"),
    "--cla-share-factor": ("int", 1, "keys and values that layers share"),
    "--shared-expert-gate-output-dimension": ("int", 1, "a gate of shared experts for each dimension"),
    "--n-hash-layers": ("int", 0, "layers whose experts are chosen by tokens"),
    "--sparsity": ("str", "none", "sparse attention"),
    "--num-residual-streams": ("int", 1, "several residual streams"),
    "--pipeline-1f1b-enable": ("int", 1, "another schedule"),
}  # fmt: skip
_EXTENDS, _SHARES, _SHARED = "--moe-extended-tp", "--enable-shared-expert", "--shared-moe-ffn-hidden-size"
_RMS, _MULTIPLE, _WIDER = "--apply-layernorm-rms", "--multiple-of", "--hidden-dim-multiplier"
_BLOCK_BIASES = ("--disable-bias-linear-fc", "--disable-bias-attn-fc")
_COMBINED, _RECIPE, _STEPS = "--combined-1f1b", "--combined-1f1b-recipe", "--gas"
_WINDOWS = ("--sliding-window", "--sliding-window-size")
_ALPHA, _ALIBI, _LIMITED = "--rope-alpha", "--use-alibi-position-embeddings", "--moe-router-topk-limited-devices"
OPTIONS: Mapping[str, Option] = {
    **{name: Option(name, kind) for name, (kind, _, _) in _NEUTRAL.items()},
    **{name: Option(name, "flag") for name in (_EXTENDS, _SHARES, _ALIBI, _RMS, _COMBINED, *_BLOCK_BIASES, "--no-bias",
                                               "--apply-layernorm-weight-plus-one",
                                               "--use-custom-fsdp",
                                               "--decoder-tp-comm-overlap",
                                               "--use-mistral-rotary-position-embeddings")},
    **{name: Option(name, "int") for name in (_SHARED, _LIMITED, _MULTIPLE, _STEPS, *_WINDOWS,
                                              "--pipe-parallel-size", "--moe-topk", "--rotary-scale-factor",
                                              "--rotary-theta")},
    **{name: Option(name, "float") for name in (_ALPHA, _WIDER)}, _RECIPE: Option(_RECIPE, "str"),
    "--activation": Option("--activation", "str"),
}  # fmt: skip
# Regular expression of options that no plan has -> their effect.
CHANGES: Mapping[str, str] = {
    r"--(ds-)?inference": "inference: no training",
    r"--(skip-train|no-train|eval-only)": "it evaluates: no training",
    r"--pipeline-model-parallel-split-rank": "stages of an encoder before those of a decoder",
    r"--standalone-embedding-stage": "a stage for the embedding alone",
    r"--num-experts-switch": "experts of Switch, all of them on every rank",
    r"--enable-zbh1-pipeline|--optimized-pipeline|--use-nanopipe(-swap)?": "another schedule",
    r"--ds-sequence-parallel-fpdt": "sequences in chunks",
    r"--use-bnb-optimizer": "states of another size",
    r"--te-precision-config-file|--(use-)?kitchen-.*": "layers in another precision",
    r"--perform-rl-step": "rewards: passes beside those of a training step",
    r"--use-mics": "shards over part of the ranks",
    r"--(enable-dynamic-|inter[-_]|selective[-_])?grad[-_]comp": "compressed gradients",
    r"--is-(pipeline|tensor)-compress|--quantized-(gradients|weights)|--onebitadam": "compressed messages",
    r"--(mask-only|gumbel-scale-range)": "masks of weights that are learnt",
    r"--(enable-hetero|hetero-mode|hetero-micro-batch-sizes|micro-batch-size-per-dp)": "devices of unlike speed",
    r"--fmoefy": "experts of FastMoE",
    r"--adaptive-expert-replication": "experts with copies",
    r"--outer-(optimizer|sync-interval)": "replicas that meet once in several steps",
    r"--use-quantize-comm": "quantised messages",
    r"--scheduler-batch-size": "a batch that changes",
    r"--output-logit-dtype": "logits in another precision",
    r"--(xielu|xiprelup?)": "an activation that no plan has",
    r"--no-(final|attn|mlp|post)-layer-?norm|--post-(layer-)?norm|--sandwich-ln|--deepnorm": "norms in other places",
    r"--glm": "attention to a part of the sequence from both sides",
    r"--schedules-method": "another schedule",
    r"--use-dynapipe": "a batch and a schedule that follow the lengths of samples",
    r"--(o2-(gradient|optimizer)|quant-(grads|states)|compress-optimizer)": "states of another size",
    r"--geglu": "GeGLU, which Megatron's programs lack",
}
_OF_DEEPSPEED = (
    r"tile-factor|memory-centric-tiled-linear|load-teacher|(num-layers|hidden-size|num-attention-heads|num-experts)-teacher|"
    r"kd-(alpha-ce|beta-ce|temp)|force-ds-sequence-parallel|disable-mem-efficient-ln|"
    r"disable-moe-top2-2nd-expert-sampling|ds-sequence-parallel-fpdt-(chunk-size|offloading)|"
    r"enable-zbh1-exact-semantics|multiprocessing-context|blend-sample-in-corpus|"
    r"(schedulefree|sophiag|dshampoo|adan|muonclip|muonadamw)-.*|train-range-to-skip|timescale|"
    r"(adjust-)?word-embedding-init(-std)?|mean-noise-span-length|noise-density"
)
_OF_MEGATRON = (
    r"no-contiguous-buffers-in-local-ddp|overlap-p2p-communication|no-delay-grad-reduce|delay-param-gather|"
    r"align-param-gather|renormalize-blend-weights|enable-one-logger|(rl|langrl|grpo|inference|otel|gtp)-.*|"
    r"keep-fp8-transpose-cache-when-using-custom-fsdp|muon-(use-nesterov|ns-steps|use-syrk)|moe-token-dropping|"
    r"moe-(jitter-eps|lbl-in-fp32)|fp32-allreduce|min-scale|disable-chunked-prefill"
)
_OF_PATCHES = (
    r"cvcuda-image-processing|adaptive-seq-len|generation-length|(source|target)-seq-len|num-fewshot|time|verbosity|"
    r"transformer-type|train-mode|optimizer-offload-(auto-threshold|chunk-size|policy)|online-evaluation-config|"
    r"moe-input-feature-slicing|disable-parallel-output|fix-old-xielu"
)
_OF_HABANA = (
    r"cache-fp8-weight(-fwd)?|fp8-(amax-reduce|manual-mode)|moe-capacity-bins-.*|moe-configured-bins|"
    r"(start-|end-)?check-tp-norm(-type|-iter)?|fix-position-emb-redundant-alloc|use-torch-compiled-autograd|"
    r"compile-from-sec-mini-batch|compiled-autograd-fallback-mode|micro-batch-sync-interval|moe-permuted-weights|"
    r"moe-router-fp32|moe-token-distribution-logging(-interval)?|attention-per-layer-logging|attention-z-loss-coeff|"
    r"disable-doc-shuffling|batch-sched-samples"
)
_OF_ASCEND = (
    r"(pre|next)-tockens|sparse-mode|optimization-level|use-deter-comp|hccl-(slice-size|op-mode|ep-group-.*)|"
    r"skip-bias-add|op-cal-tflops|cp-attention-mask-type|attention-mask-on-cpu|fill-neg-inf|alibi-diagonal-opposite|"
    r"coc-(mode|parallel-num)|use-mc2|moe-alltoall-mc2|moe-bmm-mc2|use-multiparameter-pipeline-model-parallel|"
    r"tp-[xy]|nd[12]-dim1-size|moba-(calc-method|chunk-size|topk)|pipe-experts-.*|ampipe-tp-sp-comm-overlap|"
    r"moe-no-drop|no-use-rts|noisy-gate-policy|moe-use-sinkhorn|moe-model-type|moe-dynamic-padding|input-jitter|"
    r"moe-(comm|device-level)-aux-loss-coeff|fix-router|moe-revert-type-after-topk|aiqos(-.*)?|ttp-.*|npu-datadump|"
    r"enable-(high-availability|hbmfault-repair|worker-reboot|elastic-training|mg2hf-convert|thinking)|cut-max-seqlen|"
    r"distributed-optimizer-no-replica|drop-thinking|use-triton-.*|swap-(modules|optimizer-times)|"
    r"optimizer-selection|fix-sub-seq-length|use-dsa-absorb|use-glm-rope|dpo-beta|ref-model|pref-ftx|mtp-spec|"
    r"rmsnorm-weight-in-fp32|input-layernorm-in-fp32|query-pre-attn-scalar|dualpipev-dw-detach"
)
_OF_COMPRESSION = (
    r"(pipeline|tensor)-(compress-method|ae-dim|qr-r|k|m|bits)|start-(pipeline-compress-rank|tensor-compress-layer)|"
    r"((inter|selective)-)?grad-comp-(rank|type|warm-up|epilogue-only|way)|use-error-feedback|"
    r"gradient-quantization-bits-(inter|intra)|gq-group-size-(inter|intra)|weight-quantization-bits|hadamard-transform"
)
_OF_GLM = (
    r"gpt-prob|single-span-prob|average-block-length|min-gmask-ratio|length-per-sample|(greedily-)?aggregate-.*|"
    r"multitask-ratio|(adaptive|unified)-multitask-encoding(-length)?|shrink-(logit-)?embedding-gradient(-alpha|-steps)?|"
    r"ul2-(denoiser.*|like-ul2r|mean-span-lengths|pack-any|scale-normal-std)|(dynapipe|dion)-.*"
)
_OF_PAPERS = (
    r"N|M|prior-strength|weight-reg|gumbel-temperature-range|num-expert-classes|intra-rank-edp-groups|num-subgroup|"
    r"hetero-(current-device-type|device-types|pipeline-stages|process-meshes|use-cpu-communication)|use-hetnet|"
    r"fmoe-num-experts|balance-strategy"
)
_OF_FLAGSCALE = r"rotary-position-embeddings-in-fp32|rotary-interleaved-patch|layernorm-init-weight|distributed-engine"
_OF_HYGON = (
    r"use-hip-profiler|reproduce|use-optimizer-feature|rank-adjust-window-size|(iteration|gradient)-sample-ratio|"
    r"quant-(comm-bits|group-size|scale-dtype)|sync-free-moe-backend|turbo-.*|use-primus-.*|enable-sync-free-moe|"
    r"enable-pre-init-ep-overlap-streams|schedule-timer-(start|end)|(save-)?flux-.*|disable-bw-flux-gemmrs-op|"
    r"parallel-linear-impl|pipe-sp-strategy|seq1f1b-balance-method|mhc-.*|num-layers-to-build"
)
# Options that change no layout, model or batch: kernels, logs, data, and companions of an option that CHANGES or
# another part of the reader names. Some forks have underscores for hyphens.
_NAMES = f"{_OF_DEEPSPEED}|{_OF_MEGATRON}|{_OF_PATCHES}|{_OF_HABANA}|{_OF_ASCEND}|{_OF_HYGON}"
_NAMES = f"{_NAMES}|{_OF_COMPRESSION}|{_OF_FLAGSCALE}|{_OF_GLM}|{_OF_PAPERS}".replace("-", "[-_]")
HARMLESS = rf"^--({_NAMES})$"


# Programs of Megatron-LM, MindSpeed-LLM, Pai-Megatron-Patch and of forks of Llama that train what their options state.
_PROGRAMS = re.compile(
    r"((pre|post)?train|finetune|sft|main|run)(_(gpt\d?|hybrid|mamba|bert|t5|ict|retro|vlm|llava|megatron_\w+|mcore_\w+|"
    r"llama\w*|qwen\w*|mi[sx]tral\w*|deepseek\w*|baichuan\w*|yi|gemma\w*|sft|\w*_sft))*\.py")


def modernise(arguments: Arguments) -> None:
    """Renames options, drops those at the value that changes nothing, and names the gaps of the others."""
    given = arguments.settings
    name = posixpath.basename(arguments.program.strip("'\""))
    if name.endswith(".py") and not _PROGRAMS.fullmatch(name):
        arguments.notes.append(f"{name} is a program of its own: taken to train the model that its options state")
    if "--activation" in given:
        given["--activation"] = given["--activation"].removeprefix("fast-")
    for old, new in RENAMED.items():
        if old in given:
            arguments.replace(old, {new: given[old]})
    for name, (_, neutral, effect) in _NEUTRAL.items():
        if name in given and (value := given.pop(name)) != neutral:
            arguments.gap(name, f"`{value}`: {effect}")
    for read in (_experts, _positions, _blocks, _schedule):
        read(arguments)
    for name in _WINDOWS:
        if name in given:
            arguments.replace(name, {"--window-size": f"{given[name] - 1},0"} if given[name] else {})


def _experts(arguments: Arguments) -> None:
    """Experts over ranks of tp and ep together (core_v0.5.0 to core_v0.9.0), groups of them, Pai's shared ones."""
    given = arguments.settings
    if _EXTENDS in given:
        ranks = given.get("--tensor-model-parallel-size", 1) * given.get("--expert-model-parallel-size", 1)
        given |= {"--expert-tensor-parallel-size": ranks, "--expert-model-parallel-size": 1}
        del given[_EXTENDS]
    if _LIMITED in given:
        ranks = given.get("--expert-model-parallel-size", 1)
        arguments.replace(_LIMITED, {"--moe-router-num-groups": ranks, "--moe-router-group-topk": given[_LIMITED]})
    if given.pop(_SHARES, False) and _SHARED in given:
        arguments.replace(_SHARED, {"--moe-shared-expert-intermediate-size": given[_SHARED],
                                    "--moe-shared-expert-gate": True})  # fmt: skip
    given.pop(_SHARED, None)


def _positions(arguments: Arguments) -> None:
    """Alibi, and --rope-alpha: a base of alpha^(d / (d - 2)) times its size, with d rotated dimensions of a head."""
    given = arguments.settings
    if given.get(_ALIBI):
        arguments.replace(_ALIBI, {"--position-embedding-type": "alibi"})
    alpha, heads, hidden = given.pop(_ALPHA, 1.0), given.get("--num-attention-heads", 0), given.get("--hidden-size", 0)
    if alpha > 1 and heads and (size := given.get("--kv-channels", hidden // heads)) > 2:
        given["--rotary-base"] = round(given.get("--rotary-base", 10_000) * alpha ** (size / (size - 2)))
        arguments.notes.append(f"{_ALPHA} {alpha:g}: a rotary base of {given['--rotary-base']:,}")


def _blocks(arguments: Arguments) -> None:
    """Aquila's norms and width of blocks, and biases of Pai's program of Qwen: of queries, keys and values alone."""
    given = arguments.settings
    if given.get(_RMS):
        arguments.replace(_RMS, {"--normalization": "RMSNorm"})
    multiple, wider = given.pop(_MULTIPLE, 0), given.pop(_WIDER, 1.0)
    if multiple and given.get("--swiglu") and "--hidden-size" in given:
        width = int(int(8 * given["--hidden-size"] / 3) * wider)
        given["--ffn-hidden-size"] = -(-width // multiple) * multiple
    plain = [given.pop(name, False) for name in _BLOCK_BIASES]
    if all(plain) and "qwen" in arguments.program and "--disable-bias-linear" not in given:
        given |= {"--disable-bias-linear": True, "--add-qkv-bias": True}


def _schedule(arguments: Arguments) -> None:
    """Overlap of experts by its name in HYGON's fork, and a batch by the micro-batches of a step."""
    given = arguments.settings
    recipe = given.pop(_RECIPE, "ep_a2a")
    if given.get(_COMBINED) and recipe == "ep_a2a":
        arguments.replace(_COMBINED, {"--overlap-moe-expert-parallel-comm": True})
    elif given.pop(_COMBINED, False):
        arguments.gap(_RECIPE, f"`{recipe}`: another schedule")
    if (steps := given.get(_STEPS)) is None:
        return
    stated = arguments.ranks
    ranks = stated.get("world") or stated.get("num_nodes", 1) * stated.get("gpus_per_node", 0)
    split = given.get("--tensor-model-parallel-size", 1) * given.get("--pipeline-model-parallel-size", 1)
    if ranks and ranks % split == 0 and (size := given.get("--micro-batch-size", given.get("--batch-size"))):
        arguments.replace(_STEPS, {"--global-batch-size": steps * size * ranks // split})
    else:
        del given[_STEPS]
        arguments.gap(_STEPS, "micro-batches of a step of all ranks, of which the number is not here")
