"""A catalogue of what goes wrong in emitted files: each entry edits the files of a folder, or says that it cannot."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

import numpy as np

Files = dict[str, str]
Replacement = str | Callable[[re.Match[str]], str]
Corruption = Callable[[Files, np.random.Generator], Files | None]


def edited(files: Mapping[str, str], name: str, pattern: str, new: Replacement) -> Files | None:
    """`files` with the first match of `pattern` in `name` replaced; None if there is none, or nothing changes."""
    text = files.get(name, "")
    result, count = re.subn(pattern, new, text, count=1, flags=re.MULTILINE)
    return {**files, name: result} if count and result != text else None


def _edit(name: str, pattern: str, new: Replacement) -> Corruption:
    return lambda files, rng: edited(files, name, pattern, new)


def _add(name: str, line: str) -> Corruption:
    return lambda files, rng: {**files, name: files[name] + line}


def _times(factor: int) -> Callable[[re.Match[str]], str]:
    return lambda found: f"{found[1]}{int(found[2]) * factor}"


def _plus(amount: int) -> Callable[[re.Match[str]], str]:
    return lambda found: f"{found[1]}{int(found[2]) + amount}"


def _json(change: Callable[[dict[str, object]], object]) -> Corruption:
    def apply(files: Files, rng: np.random.Generator) -> Files | None:
        data = json.loads(files["ds_config.json"])
        change(data)
        text = json.dumps(data, indent=2, sort_keys=True) + "\n"
        return {**files, "ds_config.json": text} if text != files["ds_config.json"] else None

    return apply


def _megatron_misspelt(files: Files, rng: np.random.Generator) -> Files | None:
    lines = [line for line in files["megatron.args"].splitlines() if line.startswith("--") and len(line.split()[0]) > 8]
    option = str(rng.choice(lines)).split()[0]
    cut = int(rng.integers(3, len(option) - 1))
    return edited(files, "megatron.args", rf"^{option}(?=\s|$)", option[:cut] + option[cut + 1 :])


_A = "megatron.args"
_LAUNCH_NODES = _edit("launch.sh", r"(--nnodes )(\d+)", _plus(1))
MEGATRON: dict[str, tuple[Corruption, ...]] = {
    "unknown key": (lambda files, rng: {**files, _A: files[_A] + f"--made-up-{rng.integers(99)} 3\n"},),
    "misspelt key": (_megatron_misspelt,),
    "wrong type": (
        _edit(_A, r"^(--micro-batch-size) \d+", r"\1 four"), _edit(_A, r"^(--num-layers) \d+", r"\1 8.5"),
        _edit(_A, r"^(--recompute-granularity) \w+", r"\1 some"), _edit(_A, r"^(--optimizer) \w+", r"\1 adem"),
    ),
    "out of range": (
        _edit(_A, r"^(--micro-batch-size) \d+", r"\1 0"), _edit(_A, r"^(--global-batch-size) \d+", r"\1 -8"),
        _edit(_A, r"^(--optimizer-offload-fraction) \S+", r"\1 1.5"),
        _edit(_A, r"^(--tensor-model-parallel-size) \d+", r"\1 0"),
    ),
    "product of degrees": (
        _edit(_A, r"^(--tensor-model-parallel-size )(\d+)", _times(5)), _LAUNCH_NODES,
        _edit(_A, r"^(--context-parallel-size )(\d+)", _times(7)),
    ),
    "indivisible": (
        _edit(_A, r"^(--num-layers )(\d+)", _plus(1)), _edit(_A, r"^(--num-attention-heads )(\d+)", _plus(1)),
        _edit(_A, r"^(--global-batch-size )(\d+)", _plus(1)), _edit(_A, r"^(--num-experts )(\d+)", _plus(1)),
    ),
    "mutually exclusive": (
        _edit(_A, r"^--bf16$", "--bf16\n--fp16"), _edit(_A, r"^(--use-megatron-fsdp)$", r"\1\n--use-torch-fsdp2"),
        _edit(_A, r"^(--num-layers-per-virtual-pipeline-stage \d+)$", r"\1\n--num-virtual-stages-per-pipeline-rank 2"),
        _edit(_A, r"^(--overlap-grad-reduce)\n--overlap-param-gather", "--overlap-param-gather"),
    ),
    "environment rule": (
        _edit("launch.sh", r"^export CUDA_DEVICE_MAX_CONNECTIONS=1$", "unset CUDA_DEVICE_MAX_CONNECTIONS"),
        lambda files, rng: edited(files, "launch.sh", r"^unset (CUDA_DEVICE_MAX_CONNECTIONS)$", r"export \1=1")
        if "fsdp" in files[_A] else None,
    ),
    "stage list": (
        _edit(_A, r"(layout \S*t\*)(\d+)", _plus(1)), _edit(_A, r"(layout \S*)\|(?=t)", r"\1|t|"),
        _edit(_A, r"(layout E)t\*\d+", r"\1"), _edit(_A, r"(layout \S+)L$", r"\1"),
    ),
}  # fmt: skip

_D = "ds_config.json"


def _set(path: str, value: object) -> Callable[[dict[str, object]], object]:
    def change(data: dict[str, object]) -> object:
        *blocks, name = path.split(".")
        holder = data
        for block in blocks:
            inner = holder.setdefault(block, {})
            holder = inner if isinstance(inner, dict) else {}
        holder[name] = value
        return data

    return change


DEEPSPEED: dict[str, tuple[Corruption, ...]] = {
    "unknown key": (_json(_set("made_up", 3)), _json(_set("zero_optimization.made_up", True))),
    "misspelt key": (_edit(_D, "tensor_parallel", "tensor_paralel"), _edit(_D, "overlap_comm", "overlap_com"),
                     _edit(_D, "train_batch_size", "train_batchsize"),
                     _edit(_D, "zero_optimization", "zero_optimisation")),
    "wrong type": (_json(_set("train_batch_size", "many")), _json(_set("zero_optimization.stage", "two")),
                   _json(_set("zero_optimization.overlap_comm", 3))),
    "out of range": (_json(_set("zero_optimization.stage", 5)), _json(_set("train_micro_batch_size_per_gpu", 0)),
                     _json(_set("gradient_accumulation_steps", -1))),
    "product of degrees": (_edit(_D, r'("autotp_size": )(\d+)', _times(5)), _LAUNCH_NODES,
                           _edit(_D, r'("sequence_parallel_size": )(\d+)', _times(7)),
                           _edit("ds_plan.py", r"^(PIPELINE_STAGES = )(\d+)", _times(11))),
    "indivisible": (_edit(_D, r'("train_batch_size": )(\d+)', _plus(1)),
                    _edit(_D, r'("train_micro_batch_size_per_gpu": )(\d+)', _plus(1))),
    "mutually exclusive": (
        lambda files, rng: _json(lambda data: data.update(bf16={"enabled": True}, fp16={"enabled": True}))(files, rng),
        lambda files, rng: _json(_set("zero_optimization.stage", 3))(files, rng)
        if "PIPELINE_STAGES = 1\n" not in files["ds_plan.py"] else None,
    ),
}  # fmt: skip

_Y, _T = "accelerate.yaml", "training_arguments.json"
ACCELERATE: dict[str, tuple[Corruption, ...]] = {
    "unknown key": (lambda files, rng: {**files, _Y: files[_Y] + "made_up: 3\n"},
                    _edit(_Y, r"^fsdp_config:\n", "fsdp_config:\n  fsdp_made_up: 1\n")),
    "misspelt key": (_edit(_Y, "fsdp_version", "fsdp_verison"), _edit(_Y, "num_processes", "num_proceses"),
                     _edit(_Y, "parallelism_config_dp_shard_size", "parallelism_config_dp_shards"),
                     _edit(_T, "per_device_train_batch_size", "per_device_batch_size")),
    "wrong type": (_edit(_Y, r"(num_processes:) \d+", r"\1 many"), _edit(_T, r'(steps": )\d+', r'\1"four"'),
                   _edit(_Y, r"(dp_shard_size:) \d+", r"\1 2.5")),
    "out of range": (_edit(_Y, r"(dp_shard_size:) \d+", r"\1 0"), _edit(_T, r'(batch_size": )\d+', r"\g<1>0"),
                     _edit(_Y, r"(tp_size:) \d+", r"\1 -2"), _edit(_Y, r"(fsdp_version:) \d", r"\1 3")),
    "product of degrees": (_edit(_Y, r"(num_processes: )(\d+)", _times(3)),
                           _edit(_Y, r"(dp_shard_size: )(\d+)", _times(2)),
                           _edit(_Y, r"(tp_size: )(\d+)", _times(5))),
    "indivisible": (_edit(_T, r'(accumulation_steps": )(\d+)', _plus(1)), _edit(_T, r'(batch_size": )(\d+)', _plus(1))),
    "mutually exclusive": (
        _edit(_Y, r"^(  parallelism_config_cp_size: \d+)$", r"\1\n  parallelism_config_sp_size: 2"),
        _edit(_Y, r'^distributed_type: "FSDP"$', 'distributed_type: "MULTI_GPU"'),
        _edit(_Y, r"cp_comm_strategy: .*$", "cp_comm_strategy: broadcast"),
    ),
}  # fmt: skip

_R = "ranks.yaml"


def _recipe(main: str, length: str, rank: str, of_adapters: tuple[str, ...], recomputes: str) -> dict[
        str, tuple[Corruption, ...]]:  # fmt: skip
    """What goes wrong beside accelerate's file in a recipe of the Trainer. length, rank: its options of those names;
    of_adapters: lines that a recipe with adapters cannot lose; recomputes: a line that has another value otherwise."""
    option, value = recomputes.split(": ")
    other = "false" if value == "true" else "true"
    return {
        "unknown key": (lambda files, rng: {**files, main: files[main] + "made_up: 3\n"},
                        _edit(_R, r"^fsdp_config:\n", "fsdp_config:\n  fsdp_made_up: 1\n")),
        "misspelt key": (_edit(_R, "fsdp_version", "fsdp_verison"), _edit(main, f"{rank}:", f"{rank}s:"),
                         _edit(main, "per_device_train_batch_size", "per_device_batch_size")),
        "wrong type": (_edit(_R, r"(num_processes:) \d+", r"\1 many"),
                       _edit(main, rf"({length}:) \d+", r'\1 "long"'), _edit(main, rf"({rank}:) \d+", r"\1 2.5")),
        "out of range": (_edit(_R, r"(dp_shard_size:) \d+", r"\1 0"), _edit(main, r"(batch_size:) \d+", r"\g<1> 0")),
        "product of degrees": (_edit(_R, r"(num_processes: )(\d+)", _times(3)),
                               _edit(_R, r"(dp_shard_size: )(\d+)", _times(2))),
        "indivisible": (_edit(main, r"(accumulation_steps: )(\d+)", _plus(1)),
                        _edit(main, r"(batch_size: )(\d+)", _plus(1))),
        "adapters": (_edit(main, rf"({rank}: )(\d+)", _plus(1)), *(_edit(main, line, "") for line in of_adapters)),
        "lengths": (_edit(main, rf"({length}: )(\d+)", _plus(1)), _edit(main, r"^packing: true", "packing: false"),
                    _edit(main, f"^{option}: {value}", f"{option}: {other}")),
        "elsewhere": (_edit(_R, r"^fsdp_config:\n", "fsdp_config:\n  fsdp_offload_params: true\n"),
                      lambda files, rng: {**files, main: files[main] + "deepspeed: zero3.json\n"}),
    }  # fmt: skip


TRL = _recipe("sft.yaml", "max_length", "lora_r", (r"^use_peft: true\n", r'"q_proj", ', r"^load_in_4bit: true\n"),
              "gradient_checkpointing: false")  # fmt: skip
LLAMA_FACTORY = _recipe(
    "llama_factory.yaml", "cutoff_len", "lora_rank",
    (r'^finetuning_type: "lora"\n', r"q_proj,", r"^quantization_bit: 4\n", r"^double_quantization: true\n"),
    "disable_gradient_checkpointing: true",
)  # fmt: skip

_X = "axolotl.yaml"
AXOLOTL: dict[str, tuple[Corruption, ...]] = {
    "unknown key": (lambda files, rng: {**files, _X: files[_X] + "made_up: 3\n"},
                    _edit(_X, r"^fsdp_config:\n", "fsdp_config:\n  made_up: 1\n")),
    "misspelt key": (_edit(_X, "fsdp_version", "fsdp_verison"), _edit(_X, "lora_r:", "lora_rank:"),
                     _edit(_X, "micro_batch_size", "microbatch_size"),
                     _edit(_X, "reshard_after_forward", "reshard_after_foward")),
    "wrong type": (_edit(_X, r"(dp_shard_size:) \d+", r"\1 many"), _edit(_X, r"(sequence_len:) \d+", r'\1 "long"'),
                   _edit(_X, r"(lora_r:) \d+", r"\1 2.5"), _edit(_X, r"(micro_batch_size:) \d+", r"\1 [2]")),
    "out of range": (_edit(_X, r"(dp_shard_size:) \d+", r"\1 0"), _edit(_X, r"(batch_size:) \d+", r"\g<1> 0"),
                     _edit(_X, r"(tensor_parallel_size:) \d+", r"\1 -2")),
    "product of degrees": (_LAUNCH_NODES, _edit(_X, r"(dp_shard_size: )(\d+)", _times(2)),
                           _edit(_X, r"(tensor_parallel_size: )(\d+)", _times(5))),
    "indivisible": (_edit(_X, r"(accumulation_steps: )(\d+)", _plus(1)), _edit(_X, r"(batch_size: )(\d+)", _plus(1))),
    "mutually exclusive": (_edit(_X, r"^bf16: true\nfp16: false", "bf16: true\nfp16: true"),
                           _edit(_X, r"^fp16: false", "fp16: true")),
    "adapters": (_edit(_X, r"(lora_r: )(\d+)", _plus(1)), _edit(_X, r'^adapter: "\w+"\n', ""),
                 _edit(_X, r'"q_proj", ', ""), _edit(_X, r"^load_in_4bit: true\n", "")),
    "lengths": (_edit(_X, r"(sequence_len: )(\d+)", _plus(1)),
                _edit(_X, r"^sample_packing: true", "sample_packing: false"),
                _edit(_X, r"^gradient_checkpointing: false", "gradient_checkpointing: true")),
    "elsewhere": (_edit(_X, r"^fsdp_config:\n", "fsdp_config:\n  offload_params: true\n"),
                  lambda files, rng: {**files, _X: files[_X] + "deepspeed: zero3.json\n"}),
}  # fmt: skip

_P = "torchtitan_plan.py"
TORCHTITAN: dict[str, tuple[Corruption, ...]] = {
    "unknown key": (_edit(_P, r"^(\s+training=TrainingConfig\()$", r"\1\n            made_up=3,"),
                    _edit(_P, r"^(\s+parallelism=ParallelismConfig\()$", r"\1context_parallel_rotate_method='p2p',")),
    "misspelt key": (_edit(_P, "data_parallel_shard_degree", "data_parallel_shards"),
                     _edit(_P, r"\bseq_len=", "seqlen="),
                     _edit(_P, "data_parallel_replicate_degree", "data_paralel_replicate_degree")),
    "wrong type": (_edit(_P, r"(data_parallel_shard_degree=)\d+", r"\1'all'"), _edit(_P, r"(\bseq_len=)\d+", r"\1'8k'"),
                   _edit(_P, r"(fsdp_reshard_after_forward=)\"\w+\"", r'\1"sometimes"')),
    "out of range": (_edit(_P, r"(data_parallel_replicate_degree=)\d+", r"\g<1>0"),
                     _edit(_P, r"(tensor_parallel_degree=)\d+", r"\1-4"),
                     _edit(_P, r"(local_batch_size=)\d+", r"\g<1>0")),
    "product of degrees": (_edit(_P, r"(data_parallel_shard_degree=)(\d+)", _times(3)), _LAUNCH_NODES,
                           _edit(_P, r"(tensor_parallel_degree=)(\d+)", _times(5))),
    "indivisible": (_edit(_P, r"(global_batch_size=)(\d+)", _plus(1)),
                    _edit(_P, r"(expert_parallel_degree=)(\d+)", _plus(1)),
                    _edit(_P, r"(pipeline_parallel_microbatch_size=)(\d+)", _times(7))),
    "mutually exclusive": (_edit(_P, r"^\s+disable_cuda_graphs=True,\n", ""),),
    "stage list": (_edit(_P, r"(range\(\d+, )(\d+)", _plus(1)), _edit(_P, r'"tok_embeddings", ', ""),
                   _edit(_P, r', "lm_head"\]', ', "output"]'),
                   _edit(_P, r"(range\()(\d+)(?=, \d+\)\), \"norm\")", _plus(1)),
                   _edit(_P, r'(pipeline_parallel_schedule=)"\w+"', r'\1"ZBH1"')),
}  # fmt: skip

_B = "bridge_plan.py"


def _bridge_misspelt(files: Files, rng: np.random.Generator) -> Files | None:
    names = re.findall(r"^            (\w{6,})=", files[_B], re.MULTILINE)
    name = str(rng.choice(names))
    cut = int(rng.integers(3, len(name) - 1))
    return edited(files, _B, rf"^(\s+){name}=", rf"\g<1>{name[:cut] + name[cut + 1 :]}=")


BRIDGE: dict[str, tuple[Corruption, ...]] = {
    "unknown key": (_edit(_B, r"^(\s+model=\w+\()$", r"\1\n            made_up=3,"),
                    _edit(_B, r"^(\s+ddp=\w+\()\)?$", r"\1\n            overlap_everything=True,"),
                    _edit(_B, r"^(    return ConfigContainer\()$", r"\1\n        made_up=3,")),
    "misspelt key": (_bridge_misspelt, _edit(_B, "ConfigContainer\\(\n        model=GPTModelProvider",
                                             "ConfigContainer(\n        model=GPTModelProvder")),
    "wrong type": (_edit(_B, r"^(\s+micro_batch_size=)\d+", r"\1'four'"),
                   _edit(_B, r"^(\s+num_layers=)\d+", r"\g<1>8.5"),
                   _edit(_B, r'^(\s+recompute_granularity=)"\w+"', r'\1"some"'),
                   _edit(_B, r'^(\s+optimizer=)"\w+"', r'\1"adem"'), _edit(_B, r"^(\s+bf16=)True", r"\1'yes'")),
    "out of range": (_edit(_B, r"^(\s+micro_batch_size=)\d+", r"\g<1>0"),
                     _edit(_B, r"^(\s+global_batch_size=)\d+", r"\1-8"),
                     _edit(_B, r"^(\s+optimizer_offload_fraction=)\S+,", r"\g<1>1.5,"),
                     _edit(_B, r"^(\s+tensor_model_parallel_size=)\d+", r"\g<1>0"),
                     _edit(_B, r"^(\s+virtual_pipeline_model_parallel_size=)\d+", r"\g<1>0")),
    "product of degrees": (_edit(_B, r"^(\s+tensor_model_parallel_size=)(\d+)", _times(5)), _LAUNCH_NODES,
                           _edit(_B, r"^(\s+context_parallel_size=)(\d+)", _times(7))),
    "indivisible": (_edit(_B, r"^(\s+num_layers=)(\d+)", _plus(1)),
                    _edit(_B, r"^(\s+num_attention_heads=)(\d+)", _plus(1)),
                    _edit(_B, r"^(\s+global_batch_size=)(\d+)", _plus(1)),
                    _edit(_B, r"^(\s+num_moe_experts=)(\d+)", _plus(1)),
                    _edit(_B, r"^(\s+virtual_pipeline_model_parallel_size=)(\d+)", _times(13))),
    "mutually exclusive": (
        _edit(_B, r"^(\s+)bf16=True,", r"\1bf16=True,\1fp16=True,"),
        _edit(_B, r"^(\s+)use_megatron_fsdp=True,",
              r"\1use_megatron_fsdp=True,\n        ),\n        dist=DistributedInitConfig(\1use_torch_fsdp2=True,"),
        _edit(_B, r"^(\s+)(pipeline_model_parallel_layout=.*)$", r"\1\2\1num_layers_in_first_pipeline_stage=3,"),
        _edit(_B, r"^(\s+overlap_moe_expert_parallel_comm=)True(?=,\s+delay_wgrad_compute)", r"\1False"),
        _edit(_B, r"^(        dataset=GPTDatasetConfig\(\n\s+seq_length=)(\d+)", _times(2)),
    ),
    "environment rule": (
        _edit("launch.sh", r"^export CUDA_DEVICE_MAX_CONNECTIONS=1$", "unset CUDA_DEVICE_MAX_CONNECTIONS"),
        lambda files, rng: edited(files, "launch.sh", r"^unset (CUDA_DEVICE_MAX_CONNECTIONS)$", r"export \1=1")
        if "fsdp" in files[_B] else None,
    ),
    "stage list": (
        _edit(_B, r"(layout=\S*t\*)(\d+)", _plus(1)), _edit(_B, r"(layout=\S*)\|(?=t)", r"\1|t|"),
        _edit(_B, r'(layout="E)t\*?\d*', r"\1"), _edit(_B, r'(layout=\S+)L"', r'\1"'),
    ),
}  # fmt: skip
_N = "nanotron.yaml"
NANOTRON: dict[str, tuple[Corruption, ...]] = {
    "unknown key": (_edit(_N, r"^tokens:\n", "tokens:\n  made_up: 3\n"),
                    lambda files, rng: {**files, _N: files[_N] + "made_up: 3\n"}),
    "misspelt key": (_edit(_N, "recompute_layer:", "recompute_layers:"), _edit(_N, "  tp_mode:", "  tp_modes:"),
                     _edit(_N, "micro_batch_size", "microbatch_size"), _edit(_N, "zero_stage", "zero"),
                     _edit(_N, "num_key_value_heads", "num_kv_heads")),
    "wrong type": (_edit(_N, r"^(  tp:) \d+", r"\1 many"), _edit(_N, r"(sequence_length:) \d+", r'\1 "long"'),
                   _edit(_N, r"(hidden_size:) \d+", r"\1 2.5"), _edit(_N, r"(pp_engine:) \w+", r"\1 zero_bubble"),
                   _edit(_N, r"(tp_mode:) \w+", r"\1 SCATTER"), _edit(_N, r"(dtype:) \w+", r"\1 int8")),
    "out of range": (_edit(_N, r"^(  dp:) \d+", r"\1 0"), _edit(_N, r"(micro_batch_size:) \d+", r"\1 0"),
                     _edit(_N, r"^(  tp:) \d+", r"\1 -2"), _edit(_N, r"(zero_stage:) \d+", r"\1 3")),
    "product of degrees": (_LAUNCH_NODES, _edit(_N, r"^(  dp: )(\d+)", _times(2)),
                           _edit(_N, r"^(  pp: )(\d+)", _times(5)),
                           _edit(_N, r"^(parallelism:\n)", r"\1  context_parallel_size: 2\n")),
    "layout": (_edit(_N, r"(zero_stage:) 0", r"\1 1"), _edit(_N, r"(recompute_layer:) true", r"\1 false"),
               _edit(_N, r"(recompute_layer:) false", r"\1 true"),
               _edit(_N, r"(tp_mode:) REDUCE_SCATTER", r"\1 ALL_REDUCE"),
               _edit(_N, r"(pp_engine:) afab", r"\1 1f1b")),
    "batch": (_edit(_N, r"(accumulation_per_replica: )(\d+)", _plus(1)),
              _edit(_N, r"(micro_batch_size: )(\d+)", _times(2)), _edit(_N, r"(sequence_length: )(\d+)", _times(2))),
    "model": (_edit(_N, r"(num_hidden_layers: )(\d+)", _plus(1)), _edit(_N, r"(intermediate_size: )(\d+)", _plus(64)),
              _edit(_N, r"(num_key_value_heads: )(\d+)", _times(2)), _edit(_N, r"(vocab_size: )(\d+)", _plus(512)),
              _edit(_N, r"(tie_word_embeddings:) false", r"\1 true"), _edit(_N, r"(rope_theta:) \S+", r"\1 1234.0"),
              _edit(_N, r"(rms_norm_eps:) \S+", r"\1 1.0e-03"), _edit(_N, r"(attention_bias:) false", r"\1 true"),
              _edit(_N, r"    is_qwen2_config: true\n", "    is_llama_config: true\n")),
    "elsewhere": (_edit(_N, r"^(  model_config:\n)", r"\1    sliding_window_size: 128\n"),
                  _edit(_N, r"^(  model_config:\n)", r"\1    rope_scaling: {factor: 8.0}\n"),
                  _edit(_N, r"^(  model_config:\n)", r"\1    z_loss_enabled: true\n"),
                  _edit(_N, r"^(  model_config:\n)", r"\1    _attn_implementation: sdpa\n"),
                  _edit(_N, r"^(parallelism:\n)", r"\1  tp_linear_async_communication: true\n"),
                  _edit(_N, r"(accumulate_grad_in_fp32:) true", r"\1 false"),
                  _edit(_N, r"(torch_adam_is_fused:) true", r"\1 false"), _edit(_N, r"(name:) adamW", r"\1 sgd"),
                  _edit(_N, r"^(  start_training_step: 1\n)", r"\1  sequence_length: 128\n")),
}  # fmt: skip
_Q = "nemo_plan.py"


def _nemo_misspelt(files: Files, rng: np.random.Generator) -> Files | None:
    names = re.findall(r"^ {12,}(\w{6,})=(?!run\.)", files[_Q], re.MULTILINE)
    name = str(rng.choice(names))
    cut = int(rng.integers(3, len(name) - 1))
    return edited(files, _Q, rf"^(\s+){name}=", rf"\g<1>{name[:cut] + name[cut + 1 :]}=")


NEMO: dict[str, tuple[Corruption, ...]] = {
    "unknown key": (_edit(_Q, r"^(\s+)nl\.MegatronStrategy,$", r"\g<0>\n\1made_up=3,"),
                    _edit(_Q, r"^(\s+)DistributedDataParallelConfig,$", r"\g<0>\n\1overlap_everything=True,"),
                    _edit(_Q, r"^(\s+)llm\.pretrain,$", r"\g<0>\n\1made_up=3,")),
    "misspelt key": (_nemo_misspelt, _edit(_Q, r"^(\s+)(llm\.GPTConfig|Llama31Config),$", r"\1llm.GPTConfg,")),
    "wrong type": (_edit(_Q, r"^(\s+micro_batch_size=)\d+", r"\1'four'"),
                   _edit(_Q, r"^(\s+num_layers=)\d+", r"\g<1>8.5"),
                   _edit(_Q, r'^(\s+recompute_granularity=)"\w+"', r'\1"some"'),
                   _edit(_Q, r'^(\s+optimizer=)"\w+"', r'\1"adem"'),
                   _edit(_Q, r'^(\s+precision=)"[\w-]+"', r'\1"bf17"')),
    "out of range": (_edit(_Q, r"^(\s+micro_batch_size=)\d+", r"\g<1>0"),
                     _edit(_Q, r"^(\s+global_batch_size=)\d+", r"\1-8"),
                     _edit(_Q, r"^(\s+tensor_model_parallel_size=)\d+", r"\g<1>0"),
                     _edit(_Q, r"^(\s+virtual_pipeline_model_parallel_size=)\d+", r"\g<1>0"),
                     _edit(_Q, r"^(\s+devices=)\d+", r"\g<1>0")),
    "product of degrees": (_edit(_Q, r"^(\s+tensor_model_parallel_size=)(\d+)", _times(5)), _LAUNCH_NODES,
                           _edit(_Q, r"^(\s+context_parallel_size=)(\d+)", _times(7)),
                           _edit(_Q, r"^(\s+num_nodes=)(\d+)", _plus(1))),
    "indivisible": (_edit(_Q, r"^(\s+num_layers=)(\d+)", _plus(1)),
                    _edit(_Q, r"^(\s+num_attention_heads=)(\d+)", _plus(1)),
                    _edit(_Q, r"^(\s+global_batch_size=)(\d+)", _plus(1)),
                    _edit(_Q, r"^(\s+num_moe_experts=)(\d+)", _plus(1)),
                    _edit(_Q, r"^(\s+virtual_pipeline_model_parallel_size=)(\d+)", _times(13))),
    "mutually exclusive": (
        _edit(_Q, r'^(\s+)fsdp="megatron",', r'\1fsdp="pytorch",'),
        _edit(_Q, r'^(\s+)save_ckpt_format="fsdp_dtensor",\n', ""),
        _edit(_Q, r"^(\s+)(pipeline_model_parallel_layout=.*)$", r"\1\2\1num_layers_in_first_pipeline_stage=3,"),
        _edit(_Q, r"^(\s+data=run.Config\((?:\n.*)*?\n\s+seq_length=)(\d+)", _times(2)),
        _edit(_Q, r"^(\s+)llm\.GPTConfig,$", r"\g<0>\n\1scale_factor=8.0,"),
    ),
    "environment rule": (
        _edit("launch.sh", r"^export CUDA_DEVICE_MAX_CONNECTIONS=1$", "unset CUDA_DEVICE_MAX_CONNECTIONS"),
        lambda files, rng: edited(files, "launch.sh", r"^unset (CUDA_DEVICE_MAX_CONNECTIONS)$", r"export \1=1")
        if "fsdp" in files[_Q] else None,
    ),
    "stage list": (
        _edit(_Q, r"(layout=\S*t\*)(\d+)", _plus(1)), _edit(_Q, r"(layout=\S*)\|(?=t)", r"\1|t|"),
        _edit(_Q, r'(layout="E)t\*?\d*', r"\1"), _edit(_Q, r'(layout=\S+)L"', r'\1"'),
    ),
    "elsewhere": (
        _edit(_Q, r"^(\s+)nl\.MegatronStrategy,$", r"\g<0>\n\1use_tp_pp_dp_mapping=True,"),
        _edit(_Q, r"^(\s+)MegatronCommOverlapCallback,$", r"\g<0>\n\1bucket_size=1000,"),
        _edit(_Q, r"^(\s+)Llama31Config,$", r"\1llm.GPTConfig,"),
        _edit(_Q, r"^(\s+bias_activation_fusion=)True", r"\1False"),
        _edit(_Q, r"^(\s+overlap_param_gather=)True", r"\1False"), _edit(_Q, r"^(\s+rotary_base=)\d+", r"\g<1>1234"),
        _edit(_Q, r"^(\s+)nl\.Trainer,$", r"\g<0>\n\1accumulate_grad_batches=4,"),
        _edit(_Q, r"^(\s+use_distributed_optimizer=)True", r"\1False"),
    ),
}  # fmt: skip
_G = "maxtext.yml"
_PARALLEL = "ici_tensor_parallelism|ici_tensor_sequence_parallelism"
MAXTEXT: dict[str, tuple[Corruption, ...]] = {
    "unknown key": (_add(_G, "made_up: 3\n"), _edit(_G, r"^(weight_dtype: .*\n)", r"\1made_up_dtype: float32\n")),
    "misspelt key": (_edit(_G, r"^remat_policy:", "remat_polcy:"),
                     _edit(_G, "ici_fsdp_parallelism", "ici_fsdp_paralelism"),
                     _edit(_G, "per_device_batch_size", "per_device_batchsize"), _edit(_G, r"^head_dim:", "headdim:"),
                     _edit(_G, "base_num_kv_heads", "base_num_key_heads")),
    "wrong type": (_edit(_G, r"^(ici_fsdp_parallelism:) \d+", r"\1 many"),
                   _edit(_G, r"^(base_emb_dim:) \d+", r"\1 2.5"),
                   _edit(_G, r"^(max_target_length:) \d+", r'\1 "long"'),
                   _edit(_G, r"^(remat_policy:) \w+", r"\1 some"), _edit(_G, r"^(dtype:) \w+", r"\1 int8"),
                   _edit(_G, r"^(decoder_block:) \w+", r"\1 llama9")),
    "out of range": (_edit(_G, r"^(ici_fsdp_parallelism:) \d+", r"\1 0"),
                     _edit(_G, r"^(per_device_batch_size:) \S+", r"\1 0.0"),
                     _edit(_G, r"^(gradient_accumulation_steps:) \d+", r"\1 0"),
                     _edit(_G, r"^(num_slices:) \d+", r"\1 -3")),
    "product of degrees": (_edit("launch.sh", r"^(export NNODES=)(\d+)", _plus(1)),
                           _edit(_G, r"^(ici_fsdp_parallelism: )(\d+)", _times(3)),
                           _edit(_G, r"^(dcn_data_parallelism: )(\d+)", _times(2)),
                           _edit(_G, rf"^((?:{_PARALLEL}): )(\d+)", _times(5)),
                           _edit(_G, r"^(num_slices: )(\d+)", _plus(1))),
    "indivisible": (_edit(_G, r"^(base_num_query_heads: )(\d+)", _plus(1)),
                    _edit(_G, r"^(per_device_batch_size: )\S+", r"\g<1>0.37")),
    "layout": (_edit(_G, r"^(remat_policy:) full", r"\1 minimal"),
               _edit(_G, r"^(remat_policy:) minimal\w*", r"\1 full"),
               _edit(_G, r"^ici_tensor_sequence_parallelism", "ici_tensor_parallelism"),
               _edit(_G, r"^ici_tensor_parallelism", "ici_tensor_sequence_parallelism"),
               _edit(_G, r"^(context_parallel_strategy:) ring", r"\1 all_gather"),
               _edit(_G, r"^(remat_policy:) \w+", r"\1 save_qkv_proj")),
    "batch": (_edit(_G, r"^(gradient_accumulation_steps: )(\d+)", _plus(1)),
              _edit(_G, r"^(max_target_length: )(\d+)", _times(2))),
    "model": (_edit(_G, r"^(base_num_decoder_layers: )(\d+)", _plus(1)),
              _edit(_G, r"^(base_mlp_dim: )(\d+)", _plus(64)), _edit(_G, r"^(base_num_kv_heads: )(\d+)", _times(2)),
              _edit(_G, r"^(vocab_size: )(\d+)", _plus(512)),
              _edit(_G, r"^(logits_via_embedding:) false", r"\1 true"),
              _edit(_G, r"^(rope_max_timescale:) \S+", r"\1 1234"),
              _edit(_G, r"^(normalization_layer_epsilon:) \S+", r"\1 1.0e-03"), _edit(_G, r"^rope_type: .*\n", ""),
              _edit(_G, r"^normalize_embedding_logits: .*\n", ""), _edit(_G, r"^(use_qk_norm:) \w+", r"\1 null"),
              _edit(_G, r"^(model_name:) default", r"\1 llama2-7b")),
    "elsewhere": (_add(_G, "shard_optimizer_over_data: true\n"), _add(_G, "use_iota_embed: true\n"),
                  _add(_G, "mu_dtype: bfloat16\n"), _edit(_G, r"^(rope_type: .*\n)", r"\1rope_use_scale: false\n"),
                  _add(_G, "ici_pipeline_parallelism: 2\n"), _add(_G, "quantization: fp8\n"),
                  _add(_G, "attention_type: local_sliding\n"), _edit(_G, r"^(weight_dtype:) \w+", r"\1 bfloat16"),
                  _edit(_G, r"^(attention:) \w+", r"\1 dot_product"), _edit(_G, r"^(scan_layers:) true", r"\1 false"),
                  _edit(_G, r"^(hardware:) gpu", r"\1 tpu"), _edit(_G, r"^(opt_type:) adamw", r"\1 sgd"),
                  _edit(_G, r"^(packing:) true", r"\1 false")),
}  # fmt: skip
CATALOGUE = {"megatron": MEGATRON, "deepspeed": DEEPSPEED, "accelerate": ACCELERATE, "torchtitan": TORCHTITAN,
             "megatron-bridge": BRIDGE, "trl": TRL, "llama-factory": LLAMA_FACTORY, "axolotl": AXOLOTL,
             "nanotron": NANOTRON, "nemo": NEMO, "maxtext": MAXTEXT}  # fmt: skip


def corrupted(target: str, folders: list[Files], count: int, seed: int = 0) -> list[tuple[str, Files]]:
    """(class, files) of `count` corruptions, every class in turn, every entry of a class in turn."""
    rng, out = np.random.default_rng(seed), list[tuple[str, Files]]()
    position = dict.fromkeys(CATALOGUE[target], 0)
    while len(out) < count:
        before = len(out)
        for kind, entries in CATALOGUE[target].items():
            for _ in range(len(folders)):
                number = position[kind]
                position[kind] += 1
                found = entries[number % len(entries)](dict(folders[int(rng.integers(len(folders)))]), rng)
                if found is not None:
                    out.append((kind, found))
                    break
        if len(out) == before:
            raise RuntimeError(f"no corruption of {target} applies to these folders")
    return out[:count]
