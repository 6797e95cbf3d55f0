"""Plans of techniques as users run them: what is refused, with the reason, and launches under torchrun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from meshwright.cli.main import main
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.request.load import request_from_dict
from meshwright.runtime.preparation import prepare
from meshwright.runtime.settings import Settings

from meshwright.errors import InputError, NoFeasibleLayoutError, UnsupportedError

MODEL = "llama-3.2-1b"
RATES = {"1-bit-adam": "0.001"}  # a variance of eight steps bears no more
TINY = {"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_hidden": 64, "vocab": 64, "max_positions": 4096}


def planned(
    techniques: dict[str, Any], *, model: Any = TINY, fix: dict[str, Any] | None = None, **workload: Any
) -> Plan:
    asked = {"model": model, "cluster": "4xh100-sxm-80gb", "target": "meshwright", "fix": fix or {},
             "workload": {"seq_len": 64, "global_batch": 32, "techniques": techniques, **workload}}  # fmt: skip
    return api.plan(request_from_dict(asked))


@pytest.mark.parametrize(
    ("techniques", "workload", "fix", "error", "reason"),
    [
        ({"diloco": {"bits": 8}}, {}, {}, UnsupportedError, "it sends 4, 16 or 32 bits per parameter, not 8"),
        ({"diloco": {"period": 5}}, {}, {}, UnsupportedError, "a delay of 5 steps is not below the period of 5"),
        ({"gradient-coding": {"window": 2}}, {}, {}, UnsupportedError, "a window of 2 makes them whole later"),
        ({"gradient-coding": {"window": 1, "patience": 1}}, {}, {}, UnsupportedError, "a patience of 1 waits longer"),
        ({"gradient-coding": {"window": 1}}, {}, {"tp": 2}, NoFeasibleLayoutError, "replicas that drop out"),
        ({"1-bit-adam": {}}, {"optimizer": "sgd"}, {}, UnsupportedError, "it compresses AdamW's momentum, not sgd's"),
        ({"econtrol": {}}, {}, {}, UnsupportedError, "it does not train by econtrol"),
        ({"noloco": {}}, {}, {"offload": "opt", "zero": 0}, NoFeasibleLayoutError, "offload=opt has it on the host"),
    ],
)  # fmt: skip
def test_what_it_lacks_is_refused_with_the_reason(
    techniques: dict[str, Any], workload: dict[str, Any], fix: dict[str, Any], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error) as raised:
        planned(techniques, fix=fix, **workload)
    assert reason in str(raised.value)


def test_replicas_with_parts_of_the_experts_are_refused() -> None:
    with pytest.raises(NoFeasibleLayoutError) as raised:
        planned({"noloco": {}}, model="qwen3-30b-a3b", fix={"zero": 0, "tp": 2, "ep": 1, "etp": 1})
    assert "meshwright: experts of replicas" in str(raised.value)


def test_flags_that_do_not_go_with_it_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(planned({"1-bit-adam": {}}, fix={"tp": 1}).to_json(), encoding="utf-8")
    with pytest.raises(InputError, match="replicas that exchange by 1-bit-adam do not train as one process does"):
        prepare(Settings(str(path), scale_down=True, check_parity=True))
    with pytest.raises(InputError, match="of 3 steps is none, and leaves no variance") as raised:
        prepare(Settings(str(path), steps=3))
    assert raised.value.hint == "`--steps 4` or more"
    prepare(Settings(str(path), steps=4))


def test_neutral_knobs_are_plain_data_parallelism(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(planned({"diloco": {"period": 1}}).to_json(), encoding="utf-8")
    job, _ = prepare(Settings(str(path), scale_down=True))
    assert job.technique is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["noloco", "co2", "diloco", "1-bit-adam", "gradient-coding:window=1"])
def test_a_rehearsal_learns_and_sends_the_bytes_of_the_ledger(name: str, tmp_path: Path) -> None:
    """In bf16 under torchrun, on four ranks; period 50 or 100 becomes 4."""
    plan, report = tmp_path / "plan.json", tmp_path / "run.json"
    # One sequence at a time: CPUs without instructions for bf16 take two thirds of the time for products.
    words = ["plan", "--model", MODEL, "--cluster", "4xh100-sxm-80gb", "--technique", name, "--target", "meshwright",
             "--fix", "micro_batch=1"]  # fmt: skip
    assert main([*words, "-o", str(plan), "--quiet"]) == 0
    words = ["launch", str(plan), "--scale-down", "--steps", "16", "--lr", RATES.get(name, "0.003")]
    assert main([*words, "--report", str(report), "--quiet"]) == 0
    ran = json.loads(report.read_text(encoding="utf-8"))
    losses = [step["loss"] for step in ran["steps"]]
    assert list(ran["technique"]) == [name.partition(":")[0]]
    assert min(losses[-3:]) < losses[0] - 0.2
    sent = ran["exchanged"]
    if name.startswith("gradient-coding"):  # pieces of one sum may differ by an element
        assert round(sum(sent["sent_bytes"])) == round(sum(sent["ledger_bytes"]))
    else:
        assert sent["sent_bytes"] == sent["ledger_bytes"]
        assert min(sent["ledger_bytes"]) > 0
