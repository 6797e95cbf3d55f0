"""`make kill-test`: SIGKILLs of a rank of two, 20 where training waits for its saves, 8 in saves that go on behind it.
Not collected by `make test`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .kills import EVERY, check, kill_run


@pytest.mark.parametrize(("num_kills", "least_in_save", "behind"), [(20, 6, False), (8, 8, True)])
def test_kills(two_ranks: Path, tmp_path: Path, num_kills: int, least_in_save: int, behind: bool) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(two_ranks.read_text(encoding="utf-8"), encoding="utf-8")
    found = kill_run(plan, tmp_path / "ckpt", num_kills, seed=1, behind=behind)
    how = "saves behind training" if behind else "training waits for saves"
    print(f"\n{how}\n{'kill':>4} {'resumed after':>13} {'steps lost':>10}")
    for kill, (begun, lost) in enumerate(zip(found.lives, found.lost, strict=True), 1):
        print(f"{kill:>4} {begun:>13} {lost:>10}")
    print(f"{len(found.lives)} of {num_kills} resumed, {found.in_save} in a save, a checkpoint every {EVERY} steps")
    check(found, plan, behind=behind)
    assert len(found.lives) == num_kills
    assert found.in_save >= least_in_save
