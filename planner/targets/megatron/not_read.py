"""Options of pretrain_gpt.py and of its forks that change a training but have no field in a plan."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from ..scripts import trains
from . import mindspeed, multimodal, other_releases
from .encoders import program_of

# Regular expression of options -> their effect.
CHANGES: Mapping[str, str] = {
    r"--use-tp-pp-dp-mapping": "puts pipeline stages beside one another instead of replicas: other links carry them",
    r"--(encoder|decoder)-num-layers": "the model has an encoder",
    r"--(decoder|encoder)-seq-length": "the model has a second sequence",
    r"--retro-.*": "retrieval: blocks beside those of a decoder",
    **multimodal.EFFECTS,
    **other_releases.CHANGES,
    r"--heterogeneous-layers-.*": "layers that differ, by a file",
    r"--no-rope-freq": "layers without positions",
    r"--yaml-cfg": "options in another file",
    r"--(hybrid|dynamic)-context-parallel|--max-seqlen-per-dp-cp-rank|--min-dynamic-context-parallel-size|"
    r"--sequence-packing-scheduler": "context parallelism by the length of each document",
    r"--random-ltd.*": "layers that skip tokens",
    r"--(mos|kd|kd-temperature)": "a teacher model beside the one that learns",
    r"--compression-training": "compressed layers",
    r"--modelopt-enabled": "a model that ModelOpt builds: other layers, perhaps quantised or beside a teacher",
    r"--(sparsify|pruning-(type|freq)|final-sparsity|balancer|packing|packed-num-gpus)":
        "layers that are pruned while they learn, by kernels of sparse products",
    r"--(?!lora-(r|target-modules|alpha|load|fusion|ckpt-filter)$)lora.*|--adapter.*|--peft.*|--finetune-method":
        "adapters",
    r"--data-parallel-size-arg": "replicas that the ranks do not give",
    r"--stage": "preferences or rewards: passes beside those of a training step",
    r"--(noop-layers|num-layer-list)": "no list of layers",
    r"--rope-scaling-type": "positions that are scaled otherwise",
    r"--swap-(attention|optimizer)": "activations or states on the host",
    r"--decrease-batch-size-if-needed": "a batch that follows the ranks",
    r"--step-batch-size-schedule": "a batch that changes",
    r"--(expert-)?tensor-parallel-num-weight-shards": "weights in shards over tp ranks",
    r"--relative-attention-.*": "relative positions",
    r"--mlp-chunks-for-training": "blocks in chunks",
    r"--freeze-all-layers": "layers that do not learn",
    r"--(num-layers-at-(start|end)-in-bf16|first-last-layers-bf16)": "layers in another precision",
    r"--main-(grads|params)-dtype|--megatron-fsdp-main-(grads|params)-dtype": "states of another size",
    r"--(enable-zero-bubble|zero-bubble-v-schedule|enable-zb-runtime|cpu-offload|interleave-group-size)":
        "another schedule",
}  # fmt: skip
# Regular expression of options without an entry -> their effect on price or memory.
PRICES: Mapping[str, str] = {
    r"--transformer-impl": "another implementation of the layers",
    r"--use-legacy-models|--deterministic-mode|--batch-invariant-mode": "other kernels",
    r"--(no|disable)-.*fusion|--disable-jit-fuser|--no-persist-layer-norm": "kernels apart that were one",
    r"--(use-flash-attn|flash-attention-version|use-te-activation-func|fused-residual-rmsnorm|mla-down-proj-fusion)":
        "other kernels",
    r"--moe-(permute-fusion-into-.*|shared-expert-overlap|router-fusion|enable-deepep|use-upcycling|router-dtype)":
        "other kernels of experts",
    r"--use-grouped-gemm-for-.*|--moe-router-padding-for-.*|--moe-paged-stash.*": "other kernels of experts",
    r"--(no|disable)-tp-comm-.*|--tp-comm-(overlap-.*|bootstrap-backend)": "another overlap of tp messages",
    r"--no-overlap-p2p-communication|--use-ring-exchange-p2p|--pipeline-model-parallel-comm-backend":
        "other messages of the pipeline",
    r"--defer-embedding-wgrad-compute|--wgrad-deferral-limit": "another order of the backward pass",
    r"--ddp-.*|--overlap-param-gather-with-optimizer-step|--(no|disable)-align-(grad|param).*|--use-sharp|--use-nccl-ub":
        "other messages of data parallelism",
    r"--fsdp-.*|--megatron-fsdp-.*|--enable-full-sharding-in-hsdp": "other buffers of Megatron-FSDP",
    r"--fp16-lm-cross-entropy|--fp32-residual-connection|--accumulate-allreduce-grads-in-fp32": "another precision",
    r"--fp8-(output-proj|quantizer-factory|amax-.*|margin|interval)|--no-fp8-wgrad|--disable-fp8-wgrad|"
    r"--fp4-quantizer-factory": "another precision",
    r"--(enable|external|optimizer)-cuda-graph|--cuda-graph-.*": "other CUDA graphs",
    r"--empty-unused-memory-level|--no-pin-cpu-.*|--use-cpu-initialization": "another memory",
    r"--rampup-batch-size|--decrease-batch-size-if-needed": "a batch that changes",
    r"--apply-residual-connection-post-layernorm|--qk-l2-norm|--qk-clip.*|--use-mup|--mup-.*|--openai-gelu|--onnx-safe":
        "another model",
    r"--(create-all-gather-group|nccl-communicator-config-path|overlap-p2p-communication-warmup-flush|high-priority-.*)":
        "other messages",
    r"--(reset-attention-mask|dataloader-inter-document-masking)": "attention within documents, by other kernels",
    r"--(activation-offload-fraction|delay-offload-until-cuda-graph|delta-offload-bytes-across-pp-ranks|"
    r"min-offloaded-tensor-size)": "other activations on the host",
    r"--(disable-bf16-reduced-precision-matmul|use-kitchen-.*|disable-mamba-mem-eff-path)": "other kernels",
    r"--(no|disable)-clone-scatter-output-in-embedding|--keep-fp8-transpose-cache|--ep-overlap-early-attn-memory-release":
        "another memory",
    r"--moe-(deepep|flex-dispatcher|hybridep|ncclep)-.*|--moe-single-grouped-.*|--moe-router-force-biased|"
    r"--moe-enable-routing-replay|--overlap-dispatch-backward-with-experts-wgrad": "other kernels of experts",
    r"--te-precision-config-file": "another precision",
    r"--(no|disable)-pad-vocab-size|--make-vocab-size-divisible-by|--vocab-extra-ids": "another vocabulary",
    r"--perform-rl-step|--logits-load-dir": "another step: rewards, or a teacher's logits",
    r"--moe-apply-probs-on-input|--use-(mp-args-from-)?checkpoint-args|--(mtp-)?hybrid-override-pattern":
        "another model",
    r"--batch-size|--model-parallel-size|--checkpoint-activations|--warmup": "validate_args refuses the older name",
    r"--mtp-(standalone|detach-heads)|--symmetric-ar-type|--mrope-section|--rotary-interleaved":
        "another model",
}  # fmt: skip
# Parts of harmless unknown options: kernels with the same result, checks, names.
# Whole words of names of options that the release does not have.
HARMLESS = (
    rf"{mindspeed.HARMLESS}|{other_releases.HARMLESS}|"
    r"^--(export-|enable-gpt-oss$)|"  # of megatron/post_training, which --modelopt-enabled switches on
    r"^--(rank|world[-_]size|local-rank|dist[-_]url)$|"  # of a process, given by its launcher
    # Ascend/MindSpeed-LLM c77308a1: weights of the Hub, converted first, and files on folders of one node.
    r"^--(enable-hf2mg-convert|model-type-hf|no-shared-storage|use-flush-denormal|reduce-bucket-size)$|"
    r"^--(no-)?lr\b|-lr-|^--ademamix-|(^--|[-_])(flash-attn|use-contiguous|DDP-impl|mcore|mcore-models|hidden-dropout|"
    r"\w*fusion|masked-softmax|softmax-in-fp32|query-key-layer-scaling|no-bias|gradient-accumulation-fusion|finetune|"
    r"no-load|universal-checkpoint|abort-on|codecarbon|rampup|embedding-weights-in-fp32|create-moe-param-group|use-tutel|"
    r"moe-min-capacity|onnx|llama-model|jit|synchronize|override|cpu_torch_adam|pipeline-timers|curriculum|"
    r"train-tokens|data-efficiency|repo-path|numeric-match|post-validation|empty-unused\w*|"
    r"distributed-(backend|engine|timeout|port|run)|make-vocab|accumulate-allreduce|ring-exchange|answer|local_rank|"
    r"contigious-checkpointing|te|wandb|use-cpu|straggler|rotary-interleaved|scatter-gather|max-padding|keep-last|"
    r"temperature|out-seq-length|top[-_][kp]|input-len|repetition|reset|use-mpi|logs|fused|legacy-models|pretrain-script|"
    r"sdpa|number-of|threads|gradient-clip\w*|bias-update|zero-mean|scattered|torchrun|torch-compile|fast-softmax|with-stack|deterministic|symmetric|nvtx|prefetch|"
    r"no-async-tensor|moe-eval|sync-tp|zero-(reduce|allgather|contig\w*)|allow-unspec\w*|regional|repeated|"
    r"seq-len-plus-one|goldfish|group-query-in|python|env|experiment|run|note|partition-data|faiss|indexer|retriever-(report|score)|"
    r"label-smoothing|(output-layer-)?init-method(-normal)?|aux-loss-(score-function|type)|moe[-_]log|hpu|nsight|theoretical-device-tflops|tf32)($|[-_])"
)
_PREFERENCES = re.compile(r"(^|_)(dpo|orpo|kto|simpo|ppo|grpo|rlhf|reward|prm|orm)(_|\.|$)")
_OTHER_MODELS = re.compile(r"bert|(^|_)t5|(^|_)ict|vision|vlm|vit|retro|llava|realm|retriev|dino|inpaint|classif")



def other_program(program: str) -> str:
    """Why a program trains another model than a decoder that a plan can describe; "" for a supported program."""
    name = posixpath.basename(program)
    folder = "multimodal" in program
    if not trains(program):
        return f"{program} does not train"
    if _PREFERENCES.search(name):
        return f"{program} trains preferences or rewards: passes beside those of a training step"
    if program_of(program) or multimodal.sees(program):
        return ""
    if not name or not (folder or _OTHER_MODELS.search(name)):
        return ""
    return f"{program} does not train a plain decoder, so the comparison would price another model"
