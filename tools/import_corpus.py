"""The public launch configs that readers are held to: draws their list, and fills a folder with their texts.

    python tools/import_corpus.py fill CORPUS              # fetches each file at its pinned commit
    python tools/import_corpus.py fill CORPUS --clones C   # from clones C/owner/name instead
    python tools/import_corpus.py draw --clones C          # prints the list again

The rule of the draw: of each kind, all files of the repositories in REPOSITORIES that match its patterns, in the order
of sha256("owner/name path"), at most `each` of a repository, the first `count`; a script that forks have under the same
name is drawn once; of a Python file with several functions that make a config one function, in the same order. Nobody
chooses a file, but those of the last block, which are of further repositories. No text is stored in this repository;
`CORPUS=folder pytest tests/planner/targets/test_import_corpus.py` reads them.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import yaml

LIST = Path(__file__).resolve().parents[1] / "tests" / "data" / "imports" / "corpus.yaml"


@dataclass(frozen=True)
class Kind:
    """How files of one kind are found."""

    # Suffixes of the files.
    suffixes: tuple[str, ...]
    # Regular expressions: each is somewhere in the text.
    holds: tuple[str, ...]
    # Files to draw, and the most of one repository.
    count: int
    each: int
    # Regular expression that the path must not match.
    without: str = r"(^|/)(tests?|unit_tests|functional_tests|\.github)/"
    # The format that reads it; "": that of its own name.
    format: str = ""
    # Repositories to draw from, at HEAD; (): those of REPOSITORIES and RELEASES.
    repositories: tuple[str, ...] = ()
    # Regular expression with the name of a function that makes a config: one of them is drawn of each file; "": none.
    function: str = ""
    # The option list that reads it; "": the newest release.
    release: str = ""


KINDS = {
    "megatron-args": Kind((".sh", ".slurm", ".sbatch", ".job"),
                          ("--num-layers", "--hidden-size", "--num-attention-heads", "--micro-batch-size",
                           r"pretrain_|finetune|train\w*\.py"), 48, 3),
    "accelerate": Kind((".yaml", ".yml"), (r"(?m)^(compute_environment|distributed_type):",), 26, 3),
    "deepspeed": Kind((".json",), ('"zero_optimization"',), 22, 2),
    "torchtitan": Kind((".toml",), (r"(?m)^\[training\]", r"(?m)^\[model\]"), 14, 3),
    "nemo": Kind((".yaml",), ("tensor_model_parallel_size:", "micro_batch_size:", "(?m)^trainer:", "(?m)^model:"), 6, 3,
                 r"(^|/)(tests?|\.github)/|inference|export|eval|prune|ptq"),
    "axolotl": Kind((".yaml", ".yml"), ("(?m)^base_model:", "(?m)^micro_batch_size:"), 8, 8),
    "llama-factory": Kind((".yaml", ".yml"), ("(?m)^model_name_or_path:", "(?m)^finetuning_type:",
                                              "(?m)^per_device_train_batch_size:"), 8, 8),
    "hf-trainer": Kind((".yaml", ".yml"), ("(?m)^model_name_or_path:", "(?m)^per_device_train_batch_size:",
                                           "(?m)^gradient_accumulation_steps:",
                                           r"(?ms)\A(?!.*^finetuning_type:)"), 8, 4),
    "nanotron": Kind((".yaml",), (r"(?m)^parallelism:", r"(?m)^tokens:"), 6, 6),
    "maxtext": Kind((".yml",), ("(?m)^base_emb_dim:",), 5, 5),
    "bridge-recipes": Kind((".py",), (r"(?m)^def \w+_config\(.*ConfigContainer:", r"/recipes/|cfg\.model\."), 10, 10,
                           format="megatron-bridge", repositories=("NVIDIA-NeMo/Megatron-Bridge",),
                           function=r"(?m)^def (\w+_config)\(.*ConfigContainer:"),
    "torchtitan-modules": Kind((".py",), (r"(?m)^def \w+\(\) -> Trainer\.Config:",), 8, 8,
                               format="torchtitan", repositories=("pytorch/torchtitan",),
                               function=r"(?m)^def (\w+)\(\) -> Trainer\.Config:", release="0.4.0.dev"),
    "verl": Kind((".sh",), (r"verl\.trainer\.main_ppo", r"actor_rollout_ref\.model\.path="), 10, 10,
                 repositories=("volcengine/verl",)),
}  # fmt: skip
REPOSITORIES = (
    "0traced/frontier-finetuning", "AI-Hypercomputer/maxtext", "AlignmentResearch/robust-llm-2024",
    "BabyChouSr/parallel-llms", "BloodWuRen/mistral-loop-finetuning", "Brain2nd/NeuronSpark-V1", "BudEcosystem/boomer",
    "ContextualAI/HALOs", "DeL-TaiseiOzaki/multi-gpu-sft", "DotaArtist/financial_analysis", "EmilRyd/eliciting-secrets",
    "Engmhabib/Qwen3-Local-FineTune", "ExaSearch/Megatron-DeepSpeed", "FSoft-AI4Code/RepoHyper",
    "FrankLeeeee/llama-deepspeed-benchmark", "Gezy777/distributed_train", "HCY123902/PasoDoble",
    "HabanaAI/Megatron-LM", "HongsenLei/RLIntentEmp", "InternLM/xtuner", "KiraYeetar/alpaca-lora",
    "LumiOpen/Megatron-DeepSpeed", "Luodian/Otter", "MeridianResearch/sfm-post-training", "NVIDIA/Megatron-LM",
    "NVIDIA/NeMo", "NVIDIA/NeMo-Framework-Launcher", "OpenGPTX/Megatron-LM", "ROCm/Megatron-LM", "THUDM/slime",
    "alibaba/Pai-Megatron-Patch", "argonne-lcf/Megatron-DeepSpeed", "axolotl-ai-cloud/axolotl",
    "bigcode-project/Megatron-LM", "bigscience-workshop/Megatron-DeepSpeed", "bigscience-workshop/bigscience",
    "databricks/megablocks", "deepspeedai/Megatron-DeepSpeed", "ductuan-nguyen/llm-training",
    "eminorhan/frontier-torchtitan", "epfLLM/Megatron-LLM", "fyh2001/megatron-sft-recipes", "garrett361/torchtitan",
    "haotian-liu/LLaVA", "hiyouga/LLaMA-Factory", "huggingface/accelerate", "huggingface/alignment-handbook",
    "huggingface/nanotron", "huggingface/open-r1", "huggingface/trl", "jbaron34/train-llm", "jruokola/llm-granite-ft",
    "kojimano/Megatron-DeepSpeed-ABCI", "llm-jp/Megatron-LM", "lm-sys/FastChat", "microsoft/DeepSpeed",
    "microsoft/DeepSpeedExamples", "saforem2/mmm", "sail-sg/zero-bubble-pipeline-parallelism", "swiss-ai/Megatron-LM",
    "tomoqt/multimodal", "volcengine/verl", "wahibium/DynMo", "wutianyuan1/Megatron-failslow", "zmisource/RLHF_code",
)  # fmt: skip
# Repositories whose files of a kind are in an older release: that release is drawn from.
RELEASES = {"pytorch/torchtitan": "v0.2.2"}


def _git(clones: Path, repository: str, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(clones / repository), *arguments], capture_output=True, check=True)
    return done.stdout.decode("utf-8", errors="replace")


def _candidates(clones: Path, kind: Kind) -> Iterator[tuple[str, str, str, str]]:
    """(repository, commit, path, function) of all files that match a kind; function: "" where none is drawn."""
    releases = {} if kind.repositories else RELEASES
    for repository in kind.repositories or (*REPOSITORIES, *RELEASES):
        commit = _git(clones, repository, "rev-parse", f"{releases.get(repository, 'HEAD')}^{{commit}}").strip()
        for path in _git(clones, repository, "ls-tree", "-r", "--name-only", commit).splitlines():
            if not path.endswith(kind.suffixes) or re.search(kind.without, path):
                continue
            try:
                text = _git(clones, repository, "show", f"{commit}:{path}")
            except subprocess.CalledProcessError:  # a clone without its largest files
                continue
            if all(re.search(pattern, text) for pattern in kind.holds):
                names = re.findall(kind.function, text) if kind.function else [""]
                yield repository, commit, path, min(names, key=lambda name: _hash(path, name))


def draw(clones: Path) -> Iterator[dict[str, str]]:
    """Kind, repository, commit, path and perhaps function of the files that the rule gives."""
    for name, kind in KINDS.items():
        found = sorted(_candidates(clones, kind), key=lambda item: _hash(item[0], item[2]))
        taken: Counter[str] = Counter()
        scripts: set[str] = set()
        for repository, commit, path, function in found:
            if taken[repository] < kind.each and taken.total() < kind.count and Path(path).name not in scripts:
                taken[repository] += 1
                scripts |= {Path(path).name} if name == "megatron-args" else set()
                named = {"function": function, "release": kind.release}
                chosen = {key: value for key, value in named.items() if value}
                yield {"kind": kind.format or name, "repository": repository, "commit": commit, "path": path} | chosen


def _hash(repository: str, path: str) -> str:
    return hashlib.sha256(f"{repository} {path}".encode()).hexdigest()


def fill(folder: Path, clones: Path | None) -> int:
    """Writes each listed file, and those beside it, that are not there yet. Returns how many could not be had."""
    missing = 0
    for item in yaml.safe_load(LIST.read_text(encoding="utf-8")):
        repository, commit = item["repository"], item["commit"]
        for path in (item["path"], *item.get("beside", ())):
            target = folder / repository / path
            if target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                target.write_text(_text(repository, commit, path, clones), encoding="utf-8")
            except (OSError, subprocess.CalledProcessError) as error:
                missing += 1
                print(f"{repository} {path}: {error}", file=sys.stderr)
    return missing


def _text(repository: str, commit: str, path: str, clones: Path | None) -> str:
    if clones is not None:
        return _git(clones, repository, "show", f"{commit}:{path}")
    with urlopen(f"https://raw.githubusercontent.com/{repository}/{commit}/{path}", timeout=60) as answer:
        return str(answer.read().decode("utf-8", errors="replace"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["draw", "fill"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--clones", type=Path, help="folder of clones, owner/name")
    given = parser.parse_args()
    if given.what == "draw":
        if given.clones is None:
            parser.error("draw needs --clones")
        for item in draw(given.clones):
            print(f"- {{{', '.join(f'{name}: {value}' for name, value in item.items())}}}")
    elif given.folder is None:
        parser.error("fill needs the folder to write")
    else:
        sys.exit(min(fill(given.folder, given.clones), 1))


if __name__ == "__main__":
    main()
