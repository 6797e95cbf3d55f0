"""The short part of `make fuzz`, and that the fuzzer sees what it looks for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import in_process, processes
from .corpus import build
from .inputs import BASES, Input, draw

SEEDS, AS_PROCESSES = range(7_000, 7_060), range(7_000, 7_006)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    build(folder)
    return folder


def test_no_drawn_input_breaks_a_command(corpus: Path, tmp_path: Path) -> None:
    found = [finding for seed in SEEDS for finding in in_process.run_seed(seed, corpus, tmp_path / "folder")[0]]
    assert not found, "\n".join(map(str, found))


def test_no_drawn_process_breaks(corpus: Path, tmp_path: Path) -> None:
    found = [finding for seed in AS_PROCESSES for finding in processes.run_seed(seed, corpus, tmp_path / "folder")]
    assert not found, "\n".join(map(str, found))


def test_a_seed_gives_one_input_and_all_commands_are_drawn(corpus: Path) -> None:
    assert draw(5, corpus) == draw(5, corpus)
    drawn = [draw(seed, corpus) for seed in range(600)]
    assert {next(name for name in sorted(BASES, key=len, reverse=True) if words[: len(name.split())] == name.split())
            for words in (item.words for item in drawn)} == set(BASES)  # fmt: skip
    assert any(item.files for item in drawn)


def _raises(words: Any) -> int:
    raise ZeroDivisionError


def _hangs(words: Any) -> int:
    while True:
        pass


def _destroys(words: Any) -> int:
    Path("plan.json").write_text("")
    return 0


def _leaves(words: Any) -> int:
    Path(".meshwright-x").write_text("")
    return 0


def _shows(words: Any) -> int:
    sys.stdout.write("no document\n")
    return 0


@pytest.mark.parametrize(
    ("planted", "kind"),
    [(_raises, "traceback"), (_hangs, "hang"), (_destroys, "lost file"), (_leaves, "temporary file"),
     (lambda _: 7, "exit code"), (lambda _: 2, "silence"), (_shows, "json")],
)  # fmt: skip
def test_the_fuzzer_sees_what_it_looks_for(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: Callable[[Any], int], kind: str
) -> None:
    monkeypatch.setattr(in_process, "main", planted)
    monkeypatch.setattr(in_process, "LIMIT_S", 0.3)
    monkeypatch.setattr(in_process, "draw", lambda *_: Input(["env", "--json"], {}))
    found, _ = in_process.run_seed(0, corpus, tmp_path / "folder")

    assert [finding.kind for finding in found] == [kind]


def test_an_error_of_the_program_is_found_with_its_place(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.cli.main._run", lambda *_: 1 // 0)
    found, _ = in_process.run_seed(0, corpus, tmp_path / "folder")

    assert [finding.kind for finding in found] == ["our bug"]
    assert "ZeroDivisionError" in found[0].detail
