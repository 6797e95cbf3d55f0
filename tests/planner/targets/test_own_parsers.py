"""accelerate and DeepSpeed read what is emitted for them; `make test-upstream` does the same for all frameworks."""

from __future__ import annotations

import importlib.util

import pytest
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.planner.targets.setup import Setup

from .emit_corruptions import CATALOGUE, corrupted
from .emit_plans import config_of, random_plans


def test_a_framework_that_is_absent_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEGATRON_PATH", raising=False)
    assert config_of("megatron").parser.available_source() is None
    available = config_of("accelerate").parser.available_source()
    assert (available is None) == (importlib.util.find_spec("accelerate") is None)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["accelerate", "deepspeed"])
def test_the_framework_accepts_what_is_emitted_and_not_everything(target: str) -> None:
    parser = config_of(target).parser
    if parser.available_source() is None:
        pytest.skip(f"{target} is not installed")
    setups, folders = {}, []
    for plan in random_plans(target, 40)[0]:
        try:
            files = dict(emit(plan, target).files)
        except LayoutRefusedError:
            continue
        folders.append(files)
        setups[files["plan.json"]] = Setup.of(plan, 1)

    def said(folders: list[dict[str, str]]) -> list[str | None]:
        return parser.verdicts([parser.case(files, setups[files["plan.json"]]) for files in folders])

    assert len(folders) > 30
    assert said(folders) == [None] * len(folders)
    of_main, beside = _wrong_types(target, folders)
    assert len(of_main) >= 5
    assert None not in said(of_main)
    # The one known gap: TrainingArguments takes `"four"` for gradient_accumulation_steps.
    assert bool(beside) == (target == "accelerate")
    assert all('"gradient_accumulation_steps": "four"' in files["training_arguments.json"] for files in beside)
    assert said(beside) == [None] * len(beside)


def _wrong_types(target: str, folders: list[dict[str, str]]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Corruptions with a value of a wrong type: (in the target's main file, in another)."""
    main = config_of(target).main_file
    known = {files[main] for files in folders}
    made = corrupted(target, folders, 10 * len(CATALOGUE[target]))
    wrong = [files for kind, files in made if kind == "wrong type"]
    return [files for files in wrong if files[main] not in known], [files for files in wrong if files[main] in known]
