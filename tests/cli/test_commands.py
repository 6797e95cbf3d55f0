"""The commands on real plans: exit codes, files, JSON, and that nothing is cut or coloured in a pipe."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from meshwright.cli import main as cli

from ..fuzz.corpus import TOKENIZER
from ..snapshots import FOLDER, ROOT, check, run, run_here, run_terminal

SMALL = ["--model", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "8", "--global-batch", "64"]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two plans, made by the command line."""
    folder = tmp_path_factory.mktemp("plans")
    for name, more in (("plan.json", []), ("other.json", ["--seq-len", "4096"])):
        result = run_here("plan", *SMALL, *more, "-o", name, cwd=folder)
        assert result.code == 0, result.err
    return folder


def best(folder: Path, name: str = "plan.json") -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / name).read_text())
    candidate: dict[str, Any] = document["candidates"][0]
    return candidate


def commands(layout: str) -> dict[str, list[str]]:
    return {
        "plan": ["plan", *SMALL],
        "memory": ["memory", "plan.json"],
        "memory-layout": ["memory", *SMALL, "--layout", layout],
        "explain": ["explain", "plan.json"],
        "explain-second": ["explain", "plan.json", "2"],
        "why-not": ["explain", "plan.json", "--why-not", "tp8-dp1-mbs1-z1-rfull"],
        "diff": ["diff", "plan.json", "other.json"],
        "show-gpus": ["show", "gpus"],
        "show-gpu": ["show", "gpus", "h100-sxm-80gb"],
        "show-models": ["show", "models"],
        "show-model": ["show", "models", "llama-3.1-8b"],
        "show-families": ["show", "families"],
        "show-clusters": ["show", "clusters"],
        "show-cluster": ["show", "clusters", "dgx-h100"],
        "show-targets": ["show", "targets"],
        "show-target": ["show", "targets", "megatron"],
        "env": ["env"],
    }


@pytest.mark.parametrize("name", list(commands("")))
def test_screens_in_a_pipe_and_on_a_terminal(name: str, plans: Path) -> None:
    args = commands(best(plans)["layout_id"])[name]
    piped, colored = run_here(*args, cwd=plans), run_here(*args, "--color", "always", cwd=plans)
    assert piped.code == colored.code == 0, piped.err
    assert piped.out
    assert "\x1b" not in piped.out + piped.err
    assert "…" not in piped.out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", colored.out)
    assert [line.rstrip() for line in plain.splitlines()] == piped.out.splitlines()


@pytest.mark.parametrize("kind", ["gpus", "models", "clusters", "targets", "techniques"])
def test_catalogues_fit_80_columns(kind: str) -> None:
    assert max(map(len, run_here("show", kind).out.splitlines())) <= 80


@pytest.mark.parametrize("name", ["plan", "explain", "show-gpus"])
def test_a_real_terminal_shows_the_same(name: str, plans: Path) -> None:
    args = commands("")[name]
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", run_terminal(*args, "--no-progress", cwd=plans).out)
    assert [line.rstrip() for line in plain.splitlines()] == run(*args, cwd=plans).out.splitlines()


@pytest.mark.parametrize("name", list(commands("")))
def test_json_is_one_document(name: str, plans: Path) -> None:
    result = run_here("--json", *commands(best(plans)["layout_id"])[name], cwd=plans)
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert document["format_version"] == ("1.6" if name == "plan" else "1.0")
    assert document["kind"]
    assert list(document) == sorted(document)


def test_quiet_prints_nothing(plans: Path) -> None:
    result = run("plan", *SMALL, "-q", "-o", "quiet.json", cwd=plans)
    assert (result.code, result.out, result.err) == (0, "", "")
    assert (plans / "quiet.json").read_text() == (plans / "plan.json").read_text()


def test_the_solver_of_stages_prints_nothing(tmp_path: Path) -> None:
    """HiGHS 1.16 writes its name on standard output whatever it is told."""
    result = run("-q", "plan", "--model", "gpt2", "--cluster", "dgx-h100:1", "--fix", "pp=4", "--stages", "own",
                 "-o", "plan.json", cwd=tmp_path)  # fmt: skip
    assert (result.code, result.out) == (0, "")


def test_the_file_is_the_json_document(plans: Path) -> None:
    assert run("plan", *SMALL, "--json").out == (plans / "plan.json").read_text()


def test_the_numbers_of_the_space_add_up(plans: Path) -> None:
    space = json.loads((plans / "plan.json").read_text())["certificate"]["space"]
    parts = ("dominated", "out_of_memory", "bounded", "priced")
    assert space["total"] == sum(space["ruled_out"].values()) + sum(space[part] for part in parts)


def without_origins(plan: str) -> dict[str, Any]:
    """Equal requests have equal plans, wherever their values came from."""
    document: dict[str, Any] = json.loads(plan)
    assert document.pop("origins")
    assert document.pop("document_sha256")
    return document


def test_a_request_file_says_what_flags_say(plans: Path, tmp_path: Path) -> None:
    text = "model: llama-3.1-8b\ngpu: h100-sxm-80gb\ngpus: 8\nworkload:\n  global_batch: 64\n"
    (tmp_path / "request.yaml").write_text(text)
    from_file = run("plan", "request.yaml", "--json", cwd=tmp_path)
    from_stdin = run("plan", "-", "--json", stdin=text)
    by_flags = (plans / "plan.json").read_text()
    assert without_origins(from_file.out) == without_origins(from_stdin.out) == without_origins(by_flags)


def test_the_plan_is_the_first_line_of_the_reader(plans: Path) -> None:
    out = run("plan", *SMALL).out
    assert out.startswith("llama-3.1-8b on 1 x 8 h100-sxm-80gb, 64 x 8,192 tokens per step, bf16\n")
    assert best(plans)["layout_id"] in out


@pytest.mark.parametrize(
    ("name", "args", "code"),
    [
        ("unknown-model", ["plan", "--model", "llama-3.1-8", "--gpu", "h100-sxm-80gb", "--gpus", "8"], 2),
        ("unknown-gpu", ["plan", "--model", "llama-3.1-8b", "--gpu", "h100sxm", "--gpus", "8"], 2),
        ("unknown-node", ["plan", "--model", "llama-3.1-8b", "--cluster", "dgx-h10:2"], 2),
        ("unknown-target", ["plan", *SMALL, "--target", "megatorn"], 2),
        ("unknown-show", ["show", "gpus", "h100sxm"], 2),
        ("unknown-family", ["show", "families", "Qwen-3"], 2),
        ("no-request", ["plan"], 2),
        ("missing-file", ["plan", "missing.yaml"], 2),
        ("bare-number", ["plan", *SMALL, "--max-memory", "70"], 2),
        ("zero-gpus", ["plan", "--model", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "0"], 2),
        ("too-long", ["plan", "--model", "gpt2", "--cluster", "dgx-h100:1", "--seq-len", "200000"], 2),
        ("tokens-not-whole", ["plan", *SMALL, "--global-batch", "4M tokens"], 2),
        ("bad-layout-id", ["memory", *SMALL, "--layout", "tp8"], 2),
        ("layout-of-another-cluster", ["memory", *SMALL, "--layout", "tp8-dp2-mbs1-z1-rsel"], 2),
        ("not-a-plan", ["explain", "request.json"], 2),
        ("no-such-choice", ["explain", "plan.json", "99"], 2),
        ("output-exists", ["plan", *SMALL, "-o", "plan.json"], 2),
        ("output-no-folder", ["plan", *SMALL, "-o", "no/such/plan.json"], 2),
        pytest.param("nothing-fits", ["plan", "--model", "llama-3.1-405b", "--gpu", "h100-sxm-80gb", "--gpus", "16"], 1,
                     marks=pytest.mark.slow),
        ("heads", ["plan", *SMALL, "--fix", "tp=3"], 1),
        ("batch", ["plan", *SMALL, "--global-batch", "7", "--fix", "dp=8"], 1),
    ],
)
def test_bad_input(name: str, args: list[str], code: int, plans: Path) -> None:
    (plans / "request.json").write_text('{"model": "llama-3.1-8b"}')
    before = (plans / "plan.json").read_bytes()
    piped, colored = run_here(*args, cwd=plans), run_here(*args, "--color", "always", cwd=plans)
    assert (piped.code, piped.out) == (code, "")
    assert piped.err.startswith("error: ")
    assert "\nhint: " in piped.err
    assert "Traceback" not in piped.err
    assert "\x1b" not in piped.err
    assert "\x1b" in colored.err
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored.err) == piped.err
    document = json.loads(run_here(*args, "--json", cwd=plans).out)
    assert set(document) == {"format_version", "kind", "code", "message", "hint", "details"}
    assert (plans / "plan.json").read_bytes() == before
    check(f"bad-{name}", piped)


def test_all_problems_of_a_request_file(tmp_path: Path) -> None:
    (tmp_path / "request.yaml").write_text(
        "model: llama-3.1-8b\ncluster: dgx-h100:2\nworkload:\n  seq_length: 8192\n  max_memory: 70\nfix: {tpp: 2}\n"
    )
    check("bad-request-file", run("plan", "request.yaml", cwd=tmp_path))


def test_diff_exit_code(plans: Path) -> None:
    assert run_here("diff", "plan.json", "other.json", "--exit-code", cwd=plans).code == 1
    assert run_here("diff", "plan.json", "plan.json", "--exit-code", cwd=plans).code == 0


@pytest.mark.parametrize(
    ("kind", "field"), [("request", "model"), ("serve-request", "workload"), ("plan", "candidates"),
                        ("serving-plan", "separation"), ("mixed-lengths-plan", "costs")]
)  # fmt: skip
def test_schemas_are_json_schemas(kind: str, field: str) -> None:
    document = json.loads(run_here("schema", kind).out)
    assert document["$schema"].endswith("2020-12/schema")
    assert document["type"] == "object"
    assert field in document["properties"]


def test_the_schema_of_a_sampler_plan_has_both_kinds_of_lines() -> None:
    parts = json.loads(run_here("schema", "sampler-plan").out)["$defs"]
    assert "rank_tokens" in parts["SamplerHeader"]["properties"]
    assert "microbatches" in parts["SamplerBatch"]["properties"]


def examples(name: str) -> list[str]:
    out = run_here(name, "--help").out
    return [line.strip() for line in out.splitlines() if line.startswith("    meshwright ")]


SLOW = ("validate", "memory", "plan", "import")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in cli.COMMANDS]
)
def test_examples_in_the_help_run(name: str, plans: Path) -> None:
    write_requests(plans)
    write_configs(plans)
    write_checkpoint(plans)
    if name == "check":
        make_for_check(plans)
    if name == "launch":
        make_for_launch(plans)
    if name == "launch tokens":
        write_texts(plans)
    assert examples(name)
    for line in examples(name):
        if "--from-run" in line or name == "launch export":
            continue  # tests/planner/accuracy/test_calibrate_runs.py has a report, tests/runtime a checkpoint
        result = run_here(*words_of(line, name, plans), cwd=plans)
        assert result.code == 0, f"{line}\n{result.err}"


def words_of(line: str, name: str, plans: Path) -> list[str]:
    """An example of a command as it is run: files are overwritten, and what would train or measure is only shown."""
    words = shlex.split(line.split(">")[0])[1:]
    if "-o" in words:
        words += ["--force"]
        if not words[-2].endswith("stack.yaml"):  # which the next example reads
            words[words.index("-o") + 1] = "example.json"
    if words[0] in ("launch", "profile", "explore") and name not in ("profile import", "launch tokens"):
        words.append("--dry-run")  # tests/runtime trains, tests/test_profile_*.py measure
    if "--elastic" in words:  # one node survives no loss
        words[1] = "two-nodes.json"
    if words[0] == "emit" and "--to" in words:  # the best layout may be one that it cannot express
        target = words[words.index("--to") + 1]
        assert run_here("plan", *SMALL, "--target", target, "-o", "target.json", "--force", cwd=plans).code == 0
        words[1] = "target.json"
    return words


def write_requests(plans: Path) -> None:
    """The request files that examples name, and a small model."""
    (plans / "request.yaml").write_text("model: llama-3.1-8b\ngpu: h100-sxm-80gb\ngpus: 8\n")
    (plans / "run.yaml").write_text("model: llama-3.1-8b\ncluster: dgx-h100\nworkload: {total_tokens: 5T}\n")
    served = "model: llama-3.1-8b\ncluster: dgx-h100\nworkload: {kind: serve, input: 2000, output: 300}\ntop: 1\n"
    (plans / "serve.yaml").write_text(served)
    (plans / "jobs.yaml").write_text("seq_len: 64\njobs:\n  - {model: tiny.yaml, total_tokens: 1M}\n")
    (plans / "rl.yaml").write_text("model: llama-3.2-1b\ncluster: 4xh100-sxm-80gb\nworkload: {kind: rl, output: 300}\n")
    (plans / "dpo.yaml").write_text("model: tiny.yaml\ncluster: 4xh100-sxm-80gb\ntrainer: meshwright\n"
                                    "workload: {kind: rl, algorithm: dpo, input: 8, output: 4}\n")  # fmt: skip
    sizes = "hidden: 64, layers: 2, heads: 4, ffn_hidden: 128, vocab: 256, max_positions: 64"
    (plans / "tiny.yaml").write_text(f"{{{sizes}}}\n")


def write_configs(plans: Path) -> None:
    """Configurations of frameworks, outputs of other tools, published runs, and two plans."""
    (plans / "grpo.yaml").write_text(
        "grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 16}\ncluster: {num_nodes: 4, gpus_per_node: 8}\n"
        "policy: {model_name: meta-llama/Llama-3.2-1B, max_total_sequence_length: 8192, "
        "megatron_cfg: {enabled: true}}\n"
    )
    (plans / "serve.sh").write_text("vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2\n")
    (plans / "run_grpo.sh").write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.max_response_length=8192 \\\n"
        "    actor_rollout_ref.model.path=meta-llama/Llama-3.2-1B trainer.nnodes=2 trainer.n_gpus_per_node=8\n"
    )
    with gzip.open(ROOT / "profiles/catalogue/published/runs.jsonl.gz", "rt", encoding="utf-8") as published:
        (plans / "runs.yaml").write_text("[" + ",".join(published.readline() for _ in range(3)) + "]")
    for name, config in (("train.sh", "imports/llama3_70b_megatron.sh"), ("ds.json", "imports/ds_zero3.json"),
                         ("lora.yaml", "imports/axolotl_lora.yaml"),
                         ("all_reduce.log", "profile_imports/nccl_tests_two_nodes.log"),
                         ("nodes.txt", "profile_imports/scontrol_nodes.txt"),
                         ("tuned.yaml", "tuned_plans.yaml")):  # fmt: skip
        (plans / name).write_bytes((ROOT / "tests" / "data" / config).read_bytes())
    for file in ("before.json", "after.json"):
        (plans / file).write_bytes((plans / "plan.json").read_bytes())


def write_checkpoint(plans: Path) -> None:
    """An empty folder of checkpoints, and one of Hugging Face without tensors."""
    (plans / "ckpt").mkdir(exist_ok=True)
    (plans / "Llama-3.1-8B").mkdir(exist_ok=True)
    hub = ROOT / "tests" / "data" / "configs" / "llama-3.1-8b.json"
    (plans / "Llama-3.1-8B" / "config.json").write_bytes(hub.read_bytes())
    header = b"{}"  # of a file without tensors: ranks compare shapes, the launcher only looks for whole files
    (plans / "Llama-3.1-8B" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def write_texts(plans: Path) -> None:
    """Texts and tokenizers; no tokens, which `launch` may have left."""
    shutil.rmtree(plans / "tokens", ignore_errors=True)
    for folder in (plans / "hf", plans / "Llama-3.1-8B"):
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(TOKENIZER)
        (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    (plans / "wiki.jsonl").write_text('{"text": "one"}\n')
    for text in ("a.txt", "b.txt"):
        (plans / text).write_text("one two")


def make_for_check(plans: Path) -> None:
    """Launch files. Older releases, as one of the examples names, have no graph of the iteration."""
    for needed in (("plan", *SMALL, "--target", "megatron", "--fix", "cuda_graphs=none", "-o", "target.json"),
                   ("emit", "target.json", "--to", "megatron", "-d", "run"),
                   ("plan", "serve.yaml", "--fix", "replicas=1", "-o", "serving.json"),
                   ("emit", "serving.json", "-d", "served")):
        assert run_here(*needed, "--force", cwd=plans).code == 0


def make_for_launch(plans: Path) -> None:
    """Plans of post-training and for two nodes, and data, which ranks read."""
    two_nodes = ("--model", "llama-3.1-8b", "--cluster", "dgx-h100:2", "--global-batch", "64", "-o", "two-nodes.json")
    assert run_here("plan", *two_nodes, "--force", cwd=plans).code == 0
    for kind in ("rl", "dpo"):
        assert run_here("plan", f"{kind}.yaml", "-o", f"{kind}.json", "--force", cwd=plans).code == 0
    (plans / "tokens").mkdir(exist_ok=True)
    for name in ("tokens/0.npy", "pairs.jsonl"):
        (plans / name).touch()


def test_flags_are_frozen() -> None:
    """A new flag is a decision: it needs a line here, in the reference and in the changelog."""
    lines = []
    for name in cli.COMMANDS:
        out = run_here(*name.split(), "--help").out
        flags = re.findall(r"^  (-\S.*?)(?:  |$)", out, re.MULTILINE)
        lines += [f"{name} {flag}" for flag in flags]
    check("flags", "\n".join(lines) + "\n")


def test_every_snapshot_is_used() -> None:
    """A file that no test names any more would never be looked at again."""
    text = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for path in FOLDER.glob("*.txt"):
        stem = path.stem
        for prefix in ("tradeoff-", "screen-", "validate-", "what-if-", "calibrate-from-run-", "calibrate-", "bad-",
                       "error-", "help-", "page-"):  # fmt: skip
            stem = stem.removeprefix(prefix)
        stem = stem.removesuffix("-terminal")
        assert stem in text or stem in {name.replace(" ", "-") for name in cli.COMMANDS}, path.name


def test_origins_of_a_plan_are_those_of_its_request(tmp_path: Path) -> None:
    (tmp_path / "request.yaml").write_text("model: llama-3.1-8b\nworkload:\n  global_batch: 64\n")
    given = ("--gpu", "h100-sxm-80gb", "--gpus", "8", "--max-memory", "70GiB", "--set", "workload.seq_len=4096")
    assert run_here("plan", "request.yaml", *given, "-o", "plan.json", cwd=tmp_path).code == 0
    origins = json.loads(run_here("explain", "plan.json", "--origins", "--json", cwd=tmp_path).out)["items"]
    assert {field: text for field, text in origins.items() if text != "default"} == {
        "model": "request.yaml, line 1", "workload.global_batch": "request.yaml, line 3", "gpu": "--gpu",
        "gpus": "--gpus", "workload.max_memory_bytes": "--max-memory",
        "workload.seq_len": "--set workload.seq_len",
    }  # fmt: skip


def test_own_profiles_are_given_by_a_flag(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "my-node.yaml").write_text("gpu: h100-sxm-80gb\ngpus_per_node: 4\n")
    assert "my-node" in run_here("show", "clusters", "--profiles-path", str(tmp_path)).out
    assert "my-node" not in run_here("show", "clusters").out


def test_memory_says_no_by_its_exit_code(plans: Path) -> None:
    """As scripts ask: the screen is there either way."""
    model = ["--model", "llama-3.1-70b", "--cluster", "dgx-h100:1"]
    too_much = run_here("memory", *model, "--layout", "tp8-dp1-mbs1-z1-rnone", cwd=plans)
    assert too_much.code == 1
    assert "may use" in too_much.out
    assert "tp8-dp1-mbs1-z1-rnone does not fit: it needs" in too_much.err
    assert run_here("memory", "plan.json", "--layout", "dp8-mbs1-z0-rnone", cwd=plans).code == 1
    assert run_here("memory", "plan.json", cwd=plans).code == 0


@pytest.mark.parametrize(("target", "written"), [("megatron", "megatron.args"), ("any", "meshwright.runtime.worker")])
def test_emit_writes_for_the_target_of_the_plan(target: str, written: str, tmp_path: Path) -> None:
    """Planned for Megatron and emitted without a word, another program would run what it was not priced for."""
    assert run_here("plan", *SMALL, "--target", target, "-o", "own.json", cwd=tmp_path).code == 0
    emitted = run_here("emit", "own.json", cwd=tmp_path)
    assert emitted.code == 0
    assert written in emitted.out
