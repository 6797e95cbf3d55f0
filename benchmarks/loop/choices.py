"""The layouts that could be measured: the best ones of `plan`, those that one would take without it, and others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from meshwright.planner.document.plan import digest_of

from .cases import Case, Model
from .emulated import StepFailed
from .profiling import workload_options
from .sample import BEST, Entry

# Layouts that others are drawn from: more take minutes to list, and where links differ each has its hosts ordered.
LISTED, LISTED_IN_ORDER = 3000, 300
NO_LAYOUT = 1  # exit code of `plan`: nothing legal, or nothing fits


@dataclass(frozen=True)
class Choices:
    """The layouts that a sample is taken from."""

    # The fastest ones, in the order of the plan.
    best: list[Entry]
    # Those that one would take without planning.
    naive: list[Entry]
    # Further layouts, in the order of their predicted time.
    others: list[Entry]


def find(case: Case, model: Model, cluster: Path) -> Choices:
    """Plans the model on the cluster of the file, by the command line, into files beside it."""
    folder, per_host = cluster.parent, case.hosts[0].ranks
    words = [*workload_options(model, folder), *_routing(model, folder), "--cluster", str(cluster)]
    best = _plan([*words, "--top", str(BEST)], folder / f"best-{model.name}.json")
    placed = _is_placed(_read(best))
    options = {"drawn": ["--top", str(LISTED_IN_ORDER if placed else LISTED)],
            "all dp": ["--fix", f"dp={case.num_ranks}", "--top", "1"],
            "tp = host": ["--fix", f"tp={per_host}", "--fix", "pp=1", "--fix", "cp=1", "--top", "1"]}  # fmt: skip
    if len(case.speeds) > 1:
        options["even stages"] = ["--stages", "even", "--top", "1"]
    files = {role: folder / f"{role.replace(' ', '-')}-{model.name}.json" for role in options}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = pool.map(lambda role: _plan([*words, *options[role]], files[role]), options)
        plans = dict(zip(options, made, strict=True))
    others = plans.pop("drawn")
    naive = _entries(_in_listed_order(best, only_first=True), "default order") if placed else []
    for role, plan in plans.items():
        if plan.exists():
            naive += _entries(plan if role == "even stages" else _in_listed_order(plan), role)
    top = _entries(best, "best")
    for number, entry in enumerate(top, 1):
        entry.roles = [f"best {number}"]
    return Choices(top, naive, _entries(others, "drawn"))


def separate(picked: Sequence[Entry], folder: Path) -> None:
    """Writes one plan for each of them, because every rank reads its plan and 3,000 layouts take it a second."""
    for plan in {entry.plan for entry in picked}:
        document = _read(plan)
        for number, entry in enumerate(picked):
            if entry.plan == plan:
                alone = {**document["candidates"][entry.choice - 1], "choice": 1}
                entry.plan, entry.choice = folder / f"{number}.json", 1
                _write(document, [alone], entry.plan)


def _plan(words: list[str], out: Path) -> Path:
    """The plan in `out`, which is not there if no layout fits. Raises StepFailed where `plan` fails otherwise."""
    line = ["plan", *words, "--target", "meshwright", "-o", str(out), "--force", "--no-progress"]
    done = subprocess.run([sys.executable, "-m", "meshwright", *line], capture_output=True, text=True)
    out.with_suffix(".txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode not in (0, NO_LAYOUT):
        raise StepFailed(f"`meshwright {' '.join(line)}` failed ({done.returncode})\n{done.stderr[-2000:]}")
    return out


def _routing(model: Model, folder: Path) -> list[str]:
    """Experts get equal numbers of tokens in the trials: the stack that says so, in place of what routers of trained
    models do."""
    if not model.has_experts:
        return []
    file = folder / "balanced.yaml"
    source = "trials run with --balance-experts, which deals tokens in turn"
    file.write_text(yaml.safe_dump({"inherits": "meshwright", "moe_imbalance": {"value": 1.0, "source": source}}))
    return ["--stack", str(file)]


def _read(plan: Path) -> Any:
    return json.loads(plan.read_text(encoding="utf-8"))


def _write(document: dict[str, Any], candidates: list[Any], out: Path) -> Path:
    """The plan with other candidates, under a digest of its own: ranks refuse a plan that differs from its digest."""
    rest = {name: value for name, value in document.items() if name != "document_sha256"} | {"candidates": candidates}
    out.write_text(json.dumps({**rest, "document_sha256": digest_of(rest)}), encoding="utf-8")
    return out


def _entries(plan: Path, role: str) -> list[Entry]:
    """The candidates of a plan; without its rank map, at the price that the plan gives for the order of the list."""
    document = _read(plan)
    all_hosts = document["resolved"]["cluster"]["hosts"]
    entries = []
    for candidate in document["candidates"]:
        placement = candidate["placement"]
        name, step_s = candidate["layout_id"], candidate["step_s"]
        if placement.get("order") and placement["logical_of_rank"] is None:
            name, step_s = f"{name}, hosts as listed", placement["order"]["step_listed_s"]
        entries.append(Entry(name, plan, candidate["choice"], step_s, [role], tuple(placement["hosts"] or all_hosts)))
    return entries


def _is_placed(plan: Any) -> bool:
    """Whether links differ, so that the plan has an order of the hosts."""
    return all(candidate["placement"].get("order") for candidate in plan["candidates"])


def _in_listed_order(plan: Path, *, only_first: bool = False) -> Path:
    """The plan without its rank map, so that its hosts hold the ranks as they are listed; itself where it has none."""
    document = _read(plan)
    if not _is_placed(document):
        return plan
    candidates = document["candidates"][:1] if only_first else document["candidates"]
    for candidate in candidates:
        candidate["placement"] |= {"logical_of_rank": None}
    out = plan.with_name(f"{plan.stem}-listed.json")
    return _write(document, candidates, out)


def avoided(best: Entry) -> list[str]:
    """How the plan's choice treats hosts and links that are slower than others."""
    candidate = _read(best.plan)["candidates"][best.choice - 1]
    order = candidate["placement"].get("order")
    lines = []
    for slow in order["slow"] if order else ():
        lines.append(f"planned: {slow['host']} has {slow['share']:.2f} of the others' links, and sends "
                     f"{slow['sent_bytes'] / 1e6:.1f} MB a step ({slow['sent_listed_bytes'] / 1e6:.1f} MB in the order "
                     "of the hosts)")  # fmt: skip
    for island in (candidate.get("spread") or {}).get("islands", ()):
        lines.append(f"planned: {island['layers']} layers on {island['name']}")
    lines += [f"planned: {name} stays unused" for name in (candidate.get("spread") or {}).get("unused", ())]
    return lines
