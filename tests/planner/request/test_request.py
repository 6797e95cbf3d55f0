"""Requests: precedence and origins, units, every bad input at once, and the canonical form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshwright.planner.request.fields import parse_batch
from meshwright.planner.request.fix import parse_fix
from meshwright.planner.request.keywords import FLAT, RequestFields
from meshwright.planner.request.lengths import parse_lengths
from meshwright.planner.request.load import Request, load_request, request_from_dict, request_to_dict
from meshwright.planner.request.resolve import resolve

from meshwright.errors import InputError

BASIC: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "dgx-h100:2"}


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MESHWRIGHT_CLUSTER", "MESHWRIGHT_TARGET", "MESHWRIGHT_STACK"):
        monkeypatch.delenv(name, raising=False)


def write(folder: Path, text: str, name: str = "request.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def problem(*args: Any, **more: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        load_request(*args, **more)
    return caught.value


def test_defaults() -> None:
    request = load_request(None, BASIC)
    assert request.target == "meshwright"
    work = request.to_workload()
    assert (work.seq_len, work.global_batch, work.precision, work.optimizer) == (8192, 512, "bf16", "adamw")
    assert (work.trains_layers, work.lora, work.mean_len, work.objective) == (None, None, None, "step")


def test_the_default_length_stops_at_the_positions_of_the_model() -> None:
    work = load_request(None, BASIC).to_workload(max_positions=1024)
    assert (work.seq_len, work.global_batch) == (1024, 4096)
    assert load_request(None, {**BASIC, "seq_len": 2048}).to_workload(max_positions=1024).seq_len == 2048


@pytest.mark.parametrize(("seq_len", "sequences"), [(8192, 512), (5000, 1024), (6000, 512), (114, 32_768), (2**22, 1),
                                                    (2**23, 1)])  # fmt: skip
def test_the_default_batch_is_a_power_of_two(seq_len: int, sequences: int) -> None:
    """The nearest one to 2^22 tokens by their ratio: 838 sequences of 5,000 tokens are 2 x 419, which no dp divides."""
    work = load_request(None, {**BASIC, "seq_len": seq_len}).to_workload()
    assert work.global_batch == sequences


def test_flag_beats_set_beats_file_beats_environment_beats_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWRIGHT_TARGET", "megatron")
    monkeypatch.setenv("MESHWRIGHT_STACK", "megatron-core")
    monkeypatch.setenv("MESHWRIGHT_CLUSTER", "dgx-a100-80gb:1")
    text = "model: a\ncluster: dgx-h100:2\ntarget: deepspeed\nworkload:\n  seq_len: 1\n  global_batch: 1\n"
    path = write(tmp_path, text)
    sets = ["workload.seq_len=2", "workload.global_batch=2"]
    request = load_request(path, {"global_batch": 3}, sets, flags=True)
    assert (request.workload.seq_len, request.workload.global_batch) == (2, 3)
    assert (request.target, request.stack, request.cluster) == ("deepspeed", "megatron-core", "dgx-h100:2")
    assert request.origins == {
        "model": f"{path}, line 1",
        "cluster": f"{path}, line 2",
        "target": f"{path}, line 3",
        "stack": "environment MESHWRIGHT_STACK",
        "workload.seq_len": "--set workload.seq_len",
        "workload.global_batch": "--global-batch",
    }


def test_a_cluster_in_the_environment_gives_way_to_gpus_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWRIGHT_CLUSTER", "dgx-a100-80gb:1")
    assert load_request(None, {"model": "a"}).cluster == "dgx-a100-80gb:1"
    assert load_request(None, {"model": "a", "gpu": "h100-sxm-80gb", "gpus": 8}).cluster is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.yaml", "model: m\ncluster: c\nworkload: {seq_len: 4096, max_memory: 70 GiB}\nfix: {tp: 8}\n"),
        ("r.json", '{"model":"m","cluster":"c","workload":{"seq_len":4096,"max_memory":"70 GiB"},"fix":{"tp":8}}'),
        ("r.toml", 'model = "m"\ncluster = "c"\n[workload]\nseq_len = 4096\nmax_memory = "70GiB"\n[fix]\ntp = 8\n'),
    ],
)
def test_file_formats_and_flags_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    from_file = load_request(write(tmp_path, text, name))
    flags = {"model": "m", "cluster": "c", "seq_len": 4096, "max_memory": "70GiB", "fix": ["tp=8"]}
    assert from_file.sha256 == load_request(None, flags).sha256


def test_all_problems_of_a_file_at_once(tmp_path: Path) -> None:
    text = (
        "model: m\ncluster: dgx-h100:2\nworkload:\n  seq_length: 8192\n  global_batch: 0\n  max_memory: 70\n"
        "  precision: int3\n  train: {lora: {rank: 0}}\nfix: {qp: 2}\ntpo: 3\n"
    )
    error = problem(write(tmp_path, text))
    lines = error.details["problems"]
    assert len(lines) == 7
    for number, words in (
        (4, "unknown key `seq_length` (did you mean `seq_len`?)"),
        (5, "global_batch: must be 1 or more, is 0"),
        (6, "max_memory: 70 has no unit"),
        (7, "`int3` is none of bf16, fp16, fp8, fp32 or fp4"),
        (8, "workload.train.lora.rank: must be 1 or more, is 0"),
        (9, "unknown field or switch `qp`"),
        (10, "unknown key `tpo` (did you mean `top`?)"),
    ):
        assert any(f"line {number}, " in line and words in line for line in lines), (number, lines)


def test_unknown_names_of_a_file_are_told_together_with_their_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "model: llama-3.1-9b\ncluster: dgx-h101:2\ntarget: megatronn\n")
    with pytest.raises(InputError) as caught:
        resolve(load_request(path))
    told = [line.removeprefix(f"{path}, ") for line in caught.value.details["problems"]]
    assert [line.partition("`")[0] for line in told] == [
        "line 1, model: unknown model ", "line 2, cluster: unknown node ",
        "line 3, target: unknown target "]  # fmt: skip
    assert all("did you mean" in line for line in told)


def test_a_cluster_inside_of_a_request_has_its_lines(tmp_path: Path) -> None:
    text = "model: llama-3.1-8b\ncluster:\n  name: x\n  groups:\n    - gpu: h100sxm\n"
    text += "      gpus_per_node: 0\n      count: 2\n"
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        resolve(load_request(path))
    told = [line.removeprefix(f"{path}, ") for line in caught.value.details["problems"]]
    assert told == ["line 5, cluster.groups[0].gpu: unknown GPU `h100sxm`",
                    "line 6, cluster.groups[0].gpus_per_node: `0` must be a whole number of at least 1"]  # fmt: skip


def test_a_sequence_too_long_to_count_is_named() -> None:
    with pytest.raises(InputError, match=r"seq_len: 1 x 100,000,000,000,000,000,000 tokens a step") as caught:
        load_request(None, {**BASIC, "seq_len": 10**20}).to_workload()
    assert caught.value.hint == "give a shorter sequence"


def test_faults_are_told_without_the_types_of_the_reader(tmp_path: Path) -> None:
    text = "model: [llama]\ncluster: 5\nstack: 3\n1: 2\nworkload: {2: 3}\n"
    path = write(tmp_path, text)
    told = problem(path).details["problems"]
    assert [line.removeprefix(f"{path}, ") for line in told] == [
        "line 1, model: must be a name, a folder, or a mapping that describes a model, is `['llama']` "
        "(`model: llama-3.1-8b`)",
        "line 1: key `1` is a number, where a name is needed (the keys of a request are its fields)",
        "line 2, cluster: must be a name, a file, or a mapping that describes a cluster, is `5` "
        "(`cluster: dgx-h100:2`)",
        "line 3, stack: must be a name or a file, is `3` (`meshwright show stacks` lists the names)",
        "line 5, workload: key `2` is a number, where a name is needed (the keys of a request are its fields)",
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "m"}, "cluster: is missing"),
        ({"model": "m", "gpu": "h100"}, "gpus: is missing"),
        ({"cluster": "c"}, "model: is missing"),
        ({**BASIC, "seq_len": 0}, "--seq-len: must be 1 or more, is 0"),
        ({**BASIC, "seq_len": -8192}, "--seq-len: must be 1 or more, is -8192"),
        ({**BASIC, "gpus": 0}, "--gpus: must be 1 or more, is 0"),
        ({**BASIC, "global_batch": "0"}, "--global-batch: must be 1 or more, is 0"),
        ({**BASIC, "global_batch": "lots"}, "--global-batch: `lots` is not a whole number"),
        ({**BASIC, "max_memory": "70"}, "--max-memory: 70 has no unit"),
        ({**BASIC, "max_memory": "0 GiB"}, "--max-memory: must be more than 0, is 0 GiB"),
        ({**BASIC, "max_memory": "70 Gi"}, "--max-memory: `70 Gi`: unknown unit `Gi`"),
        ({**BASIC, "dtype": "int3"}, "--dtype: `int3` is none of bf16, fp16, fp8, fp32 or fp4"),
        ({**BASIC, "optimizer": "adam"}, "--optimizer: `adam` is none of adamw, adamw-bf16, adamw-8bit, sgd or muon"),
        ({**BASIC, "objective": "fast"}, "--objective: `fast` is none of step, cost or memory"),
        ({**BASIC, "lora": "x"}, "--lora: `x` is not a whole number"),
        ({**BASIC, "lora": "16:q,z"}, "--lora: `z` is none of q, k, v, o, gate, up or down"),
        ({**BASIC, "train_layers": 0}, "--train-layers: must be 1 or more, is 0"),
        ({**BASIC, "lengths": "2048:x"}, "--lengths: weight `x` of length 2048 is not a number"),
        ({**BASIC, "lengths": "nope.csv"}, "--lengths: nope.csv: no such file"),
        ({**BASIC, "fix": ["tp"]}, "--fix: `tp` is not `field=value`"),
        ({**BASIC, "fix": ["tp=0"]}, "--fix: tp: 0 is out of range"),
        ({**BASIC, "fix": ["tp=4", "tp=8"]}, "--fix: tp is fixed to both 4 and 8"),
        ({**BASIC, "fix": ["schedule=zbv"]}, "--fix: schedule: `zbv` is none of"),
        ({**BASIC, "fix": 1.5}, "--fix: `1.5` is neither text, a list nor a mapping"),
        ({**BASIC, "fix": {"tp": 2.7}}, "--fix: tp: `2.7` is not a whole number"),
        ({**BASIC, "fix": {"tp": float("inf")}}, "--fix: tp: `inf` is not a whole number"),
        ({**BASIC, "fix": {"tp": True}}, "--fix: tp: `True` is not a whole number"),
        ({**BASIC, "fix": {"recompute_modules": 1.5}}, "--fix: recompute_modules: `1.5` is not a whole number"),
        ({**BASIC, "fix": {"recompute_modules": None}}, "--fix: recompute_modules: `None` is not a whole number"),
        ({**BASIC, "technique": 1.5}, "`1.5` is neither text, a list nor a mapping"),
        ({**BASIC, "technique": {"diloco": 100}}, "technique diloco: `100` is no mapping of its knobs"),
        ({**BASIC, "total_tokens": "1e400"}, "--total-tokens: must be finite, is 1e400"),
        ({**BASIC, "top": 0}, "--top: must be 1 or more, is 0"),
    ],
)
def test_bad_flags_are_named(given: dict[str, Any], message: str) -> None:
    assert message in problem(None, given, flags=True).message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seq_len", "--set `seq_len` is not `field=value`"),
        ("=3", "is not `field=value`"),
        ("workload.seq_len=0", "--set workload.seq_len: must be 1 or more, is 0"),
        ("workload.sequence=1", "--set workload.sequence: unknown key `sequence`"),
        ("model.hidden=3", "model is the name `llama-3.1-8b`"),
        ("cluster.groups[3].count=4", "`cluster.groups` is a list without `3`: its items are [0] to [0]"),
        ("cluster.groups.count=4", "`cluster.groups` is a list without `count`"),
        (".=3", "is not `field=value`"),
    ],
)
def test_bad_sets_are_named(text: str, message: str) -> None:
    assert message in problem(None, BASIC, [text]).message


CLUSTER = """cluster:
  groups:
    - {node: dgx-h100, count: 2}
  fabric: NONE
"""


def test_a_set_changes_one_item_of_a_list(tmp_path: Path) -> None:
    cluster = CLUSTER.replace("NONE", "non-blocking")
    path = write(tmp_path, f"model: llama-3.1-8b\nworkload: {{global_batch: 16}}\n{cluster}")
    request = load_request(path, {}, ["cluster.groups[0].count=4"])
    assert isinstance(request.cluster, dict)
    assert request.cluster["groups"] == [{"node": "dgx-h100", "count": 4}]
    assert resolve(request).cluster.num_gpus == 32


def test_parts_beside_a_set_keep_their_line_and_the_set_its_name(tmp_path: Path) -> None:
    path = write(tmp_path, f"model: llama-3.1-8b\nworkload: {{global_batch: 16}}\n{CLUSTER}")
    with pytest.raises(InputError) as raised:
        resolve(load_request(path, {}, ["cluster.groups[0].count=0", "cluster.fabrik=torus"]))
    assert [(it.field, it.line) for it in raised.value.problems] == [
        ("--set cluster.fabrik", 0), ("--set cluster.groups[0].count", 0), ("cluster.fabric", 6),
    ]  # fmt: skip


def test_the_file_of_a_cluster_is_no_request(tmp_path: Path) -> None:
    path = write(tmp_path, "groups: [{node: dgx-h100, count: 2}]\n")
    assert "`groups` belongs to a cluster (give the file of a cluster as `--cluster FILE`" in str(problem(path))


def test_an_unknown_argument_is_answered_with_the_nearest() -> None:
    assert problem(None, {**BASIC, "sedlen": 1}).hint == "did you mean `seq_len`?"


def test_a_file_that_is_no_mapping(tmp_path: Path) -> None:
    assert "is not a request" in problem(write(tmp_path, "- model: m\n")).message


def test_set_changes_a_cluster_that_is_named() -> None:
    request = load_request(None, BASIC, ["cluster.links.inter_node.bandwidth=800 Gb/s"])
    assert request.cluster == {"groups": ["dgx-h100:2"], "links": {"inter_node": {"bandwidth": "800 Gb/s"}}}


def test_fixing_by_flag_replaces_what_the_file_fixes(tmp_path: Path) -> None:
    path = write(tmp_path, "model: m\ncluster: c\nfix: {tp: 4, pp: 2}\n")
    assert load_request(path, {"fix": ["tp=8"]}).fix == {"tp": 8, "pp": 2}


def test_fix_speaks_the_language_of_layouts() -> None:
    assert parse_fix(["recompute=full", "sequence-parallel=no", "schedule=zb-v", "tp=8"]) == {
        "recompute": "full",
        "sequence_parallel": False,
        "schedule": "zb-v",
        "tp": 8,
    }
    spelled = {"recompute": {"mode": "selective", "modules": ["attn", "norm"], "layers": None}}
    assert parse_fix(spelled) == {"recompute": "selective", "recompute_modules": ["attn", "norm"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [(512, 512), ("512", 512), ("1,024", 1024), ("512 sequences", 512), ("4M tokens", {"tokens": 4_000_000})],
)
def test_batches(text: object, expected: object) -> None:
    assert parse_batch(text) == expected


def test_tokens_per_step_must_be_whole_sequences() -> None:
    request = load_request(None, {**BASIC, "global_batch": "4,194,304 tokens"})
    assert request.to_workload().global_batch == 512
    with pytest.raises(InputError, match=r"488\.28 sequences of 8192") as caught:
        load_request(None, {**BASIC, "global_batch": "4M tokens"}).to_workload()
    assert "`--global-batch 512` is 4,194,304 tokens" in caught.value.hint


def test_tokens_per_step_can_be_counted() -> None:
    for batch in (10**20, f"{2**54} tokens"):
        with pytest.raises(InputError, match=r"8,192 tokens a step are more than 2\^53"):
            load_request(None, {**BASIC, "global_batch": batch}).to_workload()
    assert load_request(None, {**BASIC, "global_batch": 10**12}).to_workload().global_batch == 10**12


def test_lengths_give_the_moments() -> None:
    work = load_request(None, {**BASIC, "lengths": {2048: 7, 8192: 3}, "packed": False}).to_workload()
    assert work.seq_len == 8192
    assert work.mean_len == pytest.approx(0.7 * 2048 + 0.3 * 8192)
    assert work.mean_square_len == pytest.approx(0.7 * 2048**2 + 0.3 * 8192**2)
    assert work.lengths == ((2048, 0.7), (8192, 0.3))
    assert work.tokens_per_step == pytest.approx(work.global_batch * (0.7 * 2048 + 0.3 * 8192))


def test_a_document_longer_than_a_sequence_is_an_error() -> None:
    with pytest.raises(InputError, match="documents of 8192 tokens, but seq_len is 4096"):
        load_request(None, {**BASIC, "lengths": "8192:1", "seq_len": 4096}).to_workload()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lengths.csv", "length,weight\n2048,7\n8192,3\n"),
        ("lengths.txt", "# documents\n" + "2048\n" * 7 + "8192\n" * 3),
        ("lengths.yaml", "2048: 0.7\n8192: 0.3\n"),
        ("lengths.json", '{"2048": 7, "8192": 3}'),
    ],
)
def test_lengths_come_from_files(tmp_path: Path, name: str, text: str) -> None:
    assert parse_lengths(str(write(tmp_path, text, name))) == {2048: 0.7, 8192: 0.3}


def test_paths_in_a_request_are_relative_to_it(tmp_path: Path) -> None:
    write(tmp_path, "2048,1\n", "lengths.csv")
    path = write(tmp_path, "model: m\ncluster: c\nworkload: {lengths: lengths.csv}\n")
    assert load_request(path).workload.lengths == {2048: 1.0}


@pytest.mark.parametrize(("lora", "message"), [
    ("16:q,all", "--lora: `all` is none of q, k, v, o, gate, up or down"),
    ("16:q,z", "--lora: `z` is none of q, k, v, o, gate, up or down"),
    ({"rank": 16, "targets": []}, "--lora: must have at least 1, has 0"),
    ("16:", "--lora: `16:` ends in a colon"),
    ("16:q:", "--lora: `16:q:` ends in a colon"),
    ("16:q,,v", "--lora: `q,,v` has a comma without a name"),
])  # fmt: skip
def test_adapters_on_no_known_projection_are_one_problem(lora: Any, message: str) -> None:
    found = problem(None, {**BASIC, "lora": lora}, flags=True)
    assert found.message == message


def test_what_is_trained() -> None:
    lora = load_request(None, {**BASIC, "lora": "16:q,v:nf4"}).to_workload()
    assert lora.lora is not None
    assert (lora.lora.rank, lora.lora.targets, lora.lora.base_dtype, lora.trains_layers) == (16, ("q", "v"), "nf4", 0)
    usual = load_request(None, {**BASIC, "lora": "8::nf4"}).to_workload().lora
    assert usual is not None
    assert (usual.targets, usual.base_dtype) == (("q", "v"), "nf4")
    every = load_request(None, {**BASIC, "lora": "8:all"}).to_workload().lora
    assert every is not None
    assert every.targets == ("q", "k", "v", "o", "gate", "up", "down")
    assert load_request(None, {**BASIC, "train_layers": 4}).to_workload().trains_layers == 4
    assert load_request(None, {**BASIC, "train": "all"}).to_workload().trains_layers is None
    assert "must be `all` or a mapping" in problem(None, {**BASIC, "train": "some"}).message


def test_limits_are_whole_bytes_and_tokens() -> None:
    work = load_request(None, {**BASIC, "max_memory": "70 GiB", "total_tokens": "15T"}).to_workload()
    assert (work.max_memory_bytes, work.total_tokens) == (70 * 2**30, 15 * 10**12)


def test_the_canonical_form_comes_back(tmp_path: Path) -> None:
    given = {
        **BASIC, "lengths": {2048: 1, 8192: 2}, "lora": "8", "max_memory": "70 GiB", "total_tokens": "15T",
        "global_batch": "4M tokens", "fix": ["tp=8", "recompute_modules=attn+norm"], "packed": False,
    }  # fmt: skip
    request = load_request(None, given)
    data = json.loads(json.dumps(request_to_dict(request)))
    again = request_from_dict(data)
    assert request_to_dict(again) == data
    assert again.sha256 == request.sha256
    assert again.to_workload() == request.to_workload()


def test_origins_do_not_change_the_digest(tmp_path: Path) -> None:
    path = write(tmp_path, "model: llama-3.1-8b\ncluster: dgx-h100:2\n")
    assert load_request(path).sha256 == load_request(None, BASIC).sha256
    assert load_request(None, {**BASIC, "seq_len": 4096}).sha256 != load_request(None, BASIC).sha256


@given(st.dictionaries(st.integers(1, 10**6), st.floats(1e-3, 1e3), min_size=1, max_size=8))
def test_shares_of_lengths_sum_to_one(histogram: dict[int, float]) -> None:
    shares = parse_lengths(histogram)
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-7)
    assert list(shares) == sorted(shares)


def test_every_flat_name_is_a_field_of_the_request() -> None:
    schema = Request.model_json_schema()
    places: set[tuple[str | int, ...]] = {(name,) for name in schema["properties"]}
    places |= {("workload", name) for name in schema["$defs"]["WorkloadRequest"]["properties"]}
    places |= {("workload", "train", name) for name in schema["$defs"]["Train"]["properties"]}
    assert set(FLAT.values()) <= places
    assert set(FLAT) == set(RequestFields.__annotations__)
