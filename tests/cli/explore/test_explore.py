"""The explorer without a browser: whom it serves, what it answers, what it refuses."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from meshwright.cli.explore import server
from meshwright.cli.explore.session import Ask, Session, SupersededError
from meshwright.planner.document.plan import Plan
from meshwright.planner.explain import exploration
from meshwright.planner.studies.compare import Comparison
from meshwright.planner.studies.what_if import what_if

import meshwright as mw

from ...explorer_server import served
from ...snapshots import environment, run_here

TOKEN = "the-token"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return mw.plan(model="llama-3.1-8b", cluster="dgx-h100:2", global_batch=64, fix={"pp": 2}, top=3)


@pytest.fixture(scope="module")
def session(plan: Plan) -> Session:
    return Session.of(plan, "plan.json")


@pytest.fixture(scope="module")
def address(session: Session) -> Iterator[str]:
    with served(session, TOKEN) as url:
        yield url


def fetched(url: str, body: object = None, **headers: str) -> tuple[int, str]:
    """(status, text)."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(asked, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def asked(address: str, name: str, **ask: Any) -> dict[str, Any]:
    root = address.partition("?")[0]
    status, text = fetched(root + name, ask, x_meshwright_token=TOKEN)
    assert status == 200, text
    answer: dict[str, Any] = json.loads(text)
    return answer


def test_the_token_opens_it(address: str) -> None:
    status, text = fetched(address)
    assert status == 200
    assert "Explore llama-3.1-8b" in text
    root = address.partition("?")[0]
    for wrong in (root, f"{root}?token=", f"{root}?token={TOKEN}x", f"{root}?token=%C3%A9"):
        status, text = fetched(wrong)
        assert (status, "Explore" in text) == (403, False)
        assert "open the address that `meshwright explore` printed" in text


@pytest.mark.parametrize("name", ["price", "pipeline", "study", "search", "frontier"])
def test_answers_need_the_token(address: str, name: str) -> None:
    url = address.partition("?")[0] + name
    assert fetched(url, {})[0] == 403
    assert fetched(url, {}, x_meshwright_token="other")[0] == 403
    assert fetched(f"{url}?token={TOKEN}", {})[0] == 403  # a form of another page could send that


def test_it_listens_on_this_machine_only(address: str) -> None:
    with server.listening(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    assert fetched(address, Host="example.org")[0] == 400  # a name of another site that leads here


def test_its_price_is_that_of_what_if(plan: Plan, session: Session) -> None:
    sets = ("gpu.memory.bandwidth=x2", "workload.global_batch=128")
    compared = what_if(plan, set=sets)
    assert isinstance(compared, Comparison)
    _, priced, _ = session._priced(Ask(sets=sets))
    same = next(each for each in priced.plan.candidates if each.layout_id == plan.best.layout_id)
    assert same.closed_s == pytest.approx(compared.after.held.step_s, rel=1e-8)
    assert session.exploration.repriced(session.exploration.changed(()), session.lists[0]).plan.best.step_s == (
        pytest.approx(plan.best.step_s, rel=1e-8)
    )


def test_links_that_differ_are_noted(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("groups: dgx-h100:3\nlinks: {slow_nodes: [{node: 1, share: 0.5}]}\n")
    plan = mw.plan(model="llama-3.2-1b", cluster=str(file), global_batch=48, top=1)
    assert "This table uses the slowest" in str(Session.of(plan, "").price(Ask())["html"])


def test_answers(plan: Plan, address: str) -> None:
    now = asked(address, "price")
    assert all(each.layout_id in now["html"] for each in plan.candidates)
    assert (now["knobs"]["gpu.memory.bandwidth"], now["command"]) == ("3.35 TB/s", "")
    second = plan.candidates[1].layout_id
    changed = asked(address, "price", sets=["gpu.memory.bandwidth=x2"], shown=second)
    assert (changed["knobs"]["gpu.memory.bandwidth"], changed["shown"]) == ("6.7 TB/s", second)
    assert changed["command"] == "meshwright what-if plan.json --set gpu.memory.bandwidth=x2 --replan"
    assert "does not fit" in asked(address, "price", sets=["gpu.memory.capacity=x0.2"])["html"]
    assert "forward" in asked(address, "pipeline", shown=second)["html"]
    assert "What binds" in asked(address, "study")["html"]


def test_the_pipeline_of_one_stage_is_its_closed_form() -> None:
    plan = mw.plan(model="llama-3.2-1b", cluster="dgx-h100", global_batch=64, fix={"pp": 1}, top=1)
    assert "One stage" in str(Session.of(plan, "").pipeline(Ask())["html"])


def test_a_search_and_its_list(address: str, session: Session) -> None:
    sets = ["gpus=8", "gpu.memory.capacity=x2"]
    asked(address, "price", sets=sets)
    found = asked(address, "search", sets=sets)
    assert "Proven" in found["html"]
    listed = session.lists[found["listed"]]
    assert len(listed) == 3
    assert listed[0].layout.num_gpus == 8
    curve = asked(address, "frontier", sets=sets)["html"]
    assert "that none beats in time and memory" in curve


def test_a_search_ends_once_other_changes_are_priced(session: Session) -> None:
    session.price(Ask(sets=("gpu.peak=x3",)))
    with pytest.raises(SupersededError):
        session.search(Ask(sets=("gpu.peak=x2",)))
    with pytest.raises(SupersededError):
        session.frontier(Ask(sets=("gpu.peak=x2",)))


def test_a_frontier_that_takes_long_says_so(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploration, "FRONTIER_S", 0.0)
    session.price(Ask(sets=("gpu.peak=x4",)))
    page = session.frontier(Ask(sets=("gpu.peak=x4",)))["html"]
    assert "The search stopped at its time limit. These are the best layouts so far" in str(page)
    assert "layouts that none beats in time and memory" in str(page)


@pytest.mark.parametrize(
    ("sets", "message", "hint"),
    [(["gpu.pek=x2"], "no such field", "gpu.peak"), (["workload.seq_len=1e9"], "", ""),
     (["model=no-such-model"], "unknown model", ""), (["gpus=0"], "", ""),
     (["gpu.peak=x0"], "must be above zero", "now"),
     (["workload.global_batch=7"], "none of these layouts is legal", "")],
)  # fmt: skip
def test_what_cannot_be_is_named(address: str, sets: list[str], message: str, hint: str) -> None:
    answer = asked(address, "price", sets=sets)
    assert answer["code"] != "internal_error", answer
    assert message in answer["message"]
    assert hint in answer["hint"]


@pytest.mark.parametrize("body", [b"", b"[", b"[]", b'{"sets": 1}', b'{"other": 1}', b'{"listed": -1}', b"\xff"])
def test_what_no_page_sends_is_refused(address: str, body: bytes) -> None:
    status, text = fetched(address.partition("?")[0] + "price", body, x_meshwright_token=TOKEN)
    assert (status, json.loads(text)["code"]) == (400, "invalid_input")


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = run_here("explore", "--port", port)
    assert (result.code, result.out) == (2, "")
    assert f"error: cannot listen on port {port}: address already in use" in result.err
    assert "hint: leave `--port` out" in result.err


def test_what_it_cannot_begin_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_here("explore", "no.json", cwd=tmp_path)
    assert (result.code, "no.json" in result.err) == (2, True)
    result = run_here("explore", "no.json", "--model", "gpt2", cwd=tmp_path)
    assert (result.code, "a plan has its model" in result.err) == (2, True)
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # as where it is not installed
    result = run_here("explore", cwd=tmp_path)
    assert result.code == 2
    assert "error: the explorer needs the `explore` extra" in result.err
    assert "hint: pip install 'meshwright[explore]'" in result.err


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path, plan: Plan) -> None:
    (tmp_path / "plan.json").write_text(plan.to_json())
    command = [sys.executable, "-m", "meshwright", "explore", "plan.json", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:  # fmt: skip
        assert process.stdout is not None
        lines = ""
        while not lines.endswith("}\n"):
            lines += process.stdout.readline()
        document = json.loads(lines)
        assert fetched(document["address"])[0] == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err, document["kind"]) == (0, "", "Stopped\n", "explore")
