"""A placement of a plan to post-train, unpacked: files are written for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ....cost_models.layouts import Layout
from ....cost_models.serving.pool import MEMORY_SHARE, WORKING_BYTES
from ....cost_models.specs.cluster import capability_of
from ....cost_models.specs.stack import StackSpec
from ....errors import InputError
from ...document.rl_plan import EngineLayout, RlCall, RlCandidate, RlPlan
from ...document.specs import hub_name, model_of, stack_of
from .limits import RlStep


@dataclass(frozen=True, kw_only=True)
class RlSetup(RlStep):
    """One placement of a plan, unpacked."""

    plan_id: str  # the first 12 digits of the digest of the request
    tool: str  # `meshwright 1.2.3`
    candidate: RlCandidate
    names: Mapping[str, str]  # by role: on the Hugging Face Hub, or in the catalogue
    prompt_tokens: int
    answer_tokens: int  # of the longest
    gpus_per_node: int
    gpu: str
    gpu_memory_bytes: float
    capability: float | None  # of CUDA; None for a GPU without one
    stack: StackSpec
    target: str | None  # framework that it was planned for; None: any

    @property
    def num_gpus(self) -> int:
        """GPUs of the cluster."""
        return max(call.first_gpu + call.gpus for call in self.candidate.calls)

    @property
    def calls(self) -> Mapping[str, RlCall]:
        """The calls by name."""
        return {call.name: call for call in self.candidate.calls}

    @property
    def train(self) -> RlCall:
        """The call that trains the policy."""
        return self.calls["train"]

    @property
    def generate(self) -> RlCall | None:
        """The call that generates; None where answers are given."""
        return self.calls.get("generate")

    @property
    def rollout(self) -> EngineLayout | None:
        """The instances that generate; None where answers are given."""
        return self.generate.engine if self.generate is not None else None

    @property
    def nodes(self) -> str:
        """`4 x 8 h100-sxm-80gb`."""
        per_node = min(self.gpus_per_node, self.num_gpus)
        return f"{self.num_gpus // per_node} x {per_node} {self.gpu}"

    @property
    def trains_on_policy(self) -> bool:
        """Whether answers train once the weights that generated them, and nobody scores them before."""
        return "logprobs" not in self.calls and self.updates == 1 and not self.candidate.lag

    @property
    def static_share(self) -> float:
        """Share of a GPU's memory for weights and cache of an engine, without its buffers."""
        return round(MEMORY_SHARE - WORKING_BYTES / self.gpu_memory_bytes, 3)

    def packed_tokens(self, call: RlCall) -> int:
        """Tokens of a micro-batch of a call that trains; the longest answer fits."""
        planned = layout_of(call).micro_batch * (call.seq_len or 0)
        return max(planned, self.prompt_tokens + self.answer_tokens)

    def pool(self, call: RlCall) -> tuple[int, int]:
        """Nodes of a call, and its GPUs on each."""
        per_node = math.gcd(call.gpus, self.gpus_per_node) if call.gpus > self.gpus_per_node else call.gpus
        return call.gpus // per_node, per_node

    def leaves(self, role: str) -> bool:
        """Whether a model goes to host memory while another call has its GPUs."""
        home = next((it for it in self.candidate.calls if it.role == role and it.kind == "train"),
                    next(it for it in self.candidate.calls if it.role == role and it.kind != "generate"))  # fmt: skip
        return any(role not in it.resident_bytes for it in self.candidate.calls
                   if (it.role != role or it.kind == "generate") and it.first_gpu < home.first_gpu + home.gpus
                   and home.first_gpu < it.first_gpu + it.gpus)  # fmt: skip

    @classmethod
    def of(cls, plan: RlPlan, choice: int, name: str) -> RlSetup:
        """Placement `choice` of a plan. name: its file. Raises InputError."""
        from ...._version import __version__

        work, resolved = plan.request["workload"], plan.resolved
        answers = resolved["answers"]
        models = {role: model_of({"model": data}, name) for role, data in resolved["models"].items()}
        group = resolved["cluster"]["groups"][0]
        candidate = plan.candidate(choice)
        if any(call.kind == "train" and call.seq_len is None for call in candidate.calls):
            raise InputError(f"{name}: an older version wrote it, without the lengths of packed sequences",
                             hint="plan again")  # fmt: skip
        return cls(
            plan_id=plan.request_sha256[:12], tool=f"meshwright {__version__}", candidate=candidate, models=models,
            names={role: hub_name(data) for role, data in resolved["models"].items()},
            algorithm=work["algorithm"], prompts=work["prompts"], samples=answers["per_step"] // work["prompts"],
            updates=work["updates"], prompt_tokens=work["input"],
            answer_tokens=work["output_max"] or math.ceil(answers["longest"]), optimizer=work["optimizer"],
            trainer=resolved["trainer"], engine=resolved["engine"], gpus_per_node=group["gpus_per_node"],
            gpu=group["gpu"]["name"], gpu_memory_bytes=group["gpu"]["memory_bytes"],
            capability=capability_of(str(group["gpu"].get("arch", ""))), stack=stack_of(resolved, name),
            target=plan.request.get("target"),
        )  # fmt: skip


def layout_of(call: RlCall) -> Layout:
    """The layout of a call that trains or scores."""
    return Layout.from_dict(call.layout or {})
