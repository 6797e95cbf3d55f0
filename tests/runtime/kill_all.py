"""`make kill-test`: 20 SIGKILLs of a rank, 7 of them in the middle of a save. Not collected by `make test`."""

from __future__ import annotations

from pathlib import Path

from .kills import EVERY, check, kill_run

NUM_KILLS = 20


def test_twenty_kills(two_ranks: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(two_ranks.read_text(encoding="utf-8"), encoding="utf-8")
    found = kill_run(plan, tmp_path / "ckpt", NUM_KILLS, seed=1)
    print(f"\n{'kill':>4} {'resumed after':>13} {'steps lost':>10}")
    for kill, (begun, lost) in enumerate(zip(found.lives, found.lost, strict=True), 1):
        print(f"{kill:>4} {begun:>13} {lost:>10}")
    print(f"{len(found.lives)} of {NUM_KILLS} resumed, {found.in_save} in a save, a checkpoint every {EVERY} steps")
    check(found, plan)
    assert len(found.lives) == NUM_KILLS
    assert found.in_save >= 6
