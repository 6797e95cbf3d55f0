"""The fastest layout of every call of a step on so many GPUs, each found once: by the exact search of training steps,
by all layouts of an engine, by all degrees of a forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cache

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.layouts import OFFLOADS
from ...cost_models.quantities.memory import engine_bytes
from ...cost_models.rates import collectives
from ...cost_models.serving.pool import MEMORY_SHARE
from ...cost_models.serving.rollout import rollout_time
from ...cost_models.specs.variants import valued
from ...profiles.stack.engines import shipped_engines
from ...profiles.stack.post_training import PostTrainingConstants, post_training_constants
from ..evaluation.staged import Staged
from ..request.resolve import Resolved
from ..search.run import search_of
from ..serving.instance import link_curve, pool
from ..serving.space import Served, sites_of, space_of
from ..space.rules import fixed
from .answer_degrees import fastest_by_rule
from .forward import fastest_forwards, forward_of, forwards_by
from .graph import Call, Role
from .options import Option, longer, of_training, with_leaner
from .problem import RlProblem, part_of

# Sequences of a step differ in length: no CUDA graph replays them, and none is cut in two halves that overlap.
_UNLIKE = {"cuda_graphs": 0, "ep_overlap": 0}
_LEAST_KEPT = {"zero": 3, "offload": OFFLOADS.index("opt")}  # of a model between calls, whatever a step takes
LEAN_PARTS = (2, 4, 8)  # of the memory, in which the fastest layouts of a call are found beside that in all of it


def _fields(option: Option, names: Sequence[str]) -> dict[str, int]:
    """Fields of the layout of training."""
    return {name: getattr(option.layout, name) for name in names}


class Prices:
    """The options of a problem. Each is worked out once per call and number of GPUs; `train`, `infer`, `home` and
    `generate` without the constants of post-training, `of` and `at_home` with them."""

    def __init__(self, rl: RlProblem) -> None:
        self.rl = rl
        self.constants = post_training_constants()
        self.whole_bytes = {role: engine_bytes(model) for role, model in rl.models.items()}
        self.train = cache(self._train)
        self.infer = cache(self._infer)
        self.generate = cache(self._generate)
        self.home = cache(self._home)

    def under(self, constants: PostTrainingConstants) -> Prices:
        """The same options by other constants."""
        other = copy(self)
        other.constants = constants
        return other

    @property
    def controller_s(self) -> float:
        """Seconds of the data, rewards and logs of a step; pairs that are given have no rewards."""
        return 0.0 if self.rl.work.algorithm == "dpo" else self.constants.step_s

    def of(self, call: Call, gpus: int, lag: int = 0) -> Option | None:
        """The fastest option; None where nothing fits. lag: of the answers; those of so many steps are generated at
        once."""
        if call.kind == "generate":
            option = self.generate(gpus, lag)
            return option if option is None else replace(
                option, seconds=option.seconds + option.hosted_iterations * self.constants.iteration_s)  # fmt: skip
        role = self._same(call.role)
        option = self.train(role, gpus) if call.kind == "train" else self.infer(role, gpus)
        return longer(option, self.constants.training)

    def at_home(self, call: Call, gpus: int) -> Option | None:
        """A model that is trained on the same GPUs scores by its layout of training."""
        return longer(self.home(self._same(call.role), gpus), self.constants.training)

    def _same(self, role: Role) -> Role:
        """The first role with this model: equal models have equal prices."""
        models = self.rl.models
        return next(first for first, model in models.items() if model is models[role])

    def _train(self, role: Role, gpus: int) -> Option | None:
        if self.rl.work.lengths_rule is not None:
            return fastest_by_rule(self.rl, gpus)
        given = {**_UNLIKE, **self.rl.fixed.get("train", {})}
        joint = self.rl.joint if role in ("policy", "critic") else ()
        if joint and role == "critic":
            policy = self.train("policy", gpus)
            if policy is None:
                return None
            given |= _fields(policy, joint)
        answers = self.rl.work.answers // self.rl.work.updates
        packed = [self.rl.on(role, gpus, answers, each) for each in self.rl.packings(answers, gpus)]
        tried = [(option, resolved) for resolved in packed
                 if (option := self._trained(resolved, given, resolved.budget_bytes)) is not None]  # fmt: skip
        if not tried:
            return None
        fastest, resolved = min(tried, key=lambda each: each[0].seconds)
        given |= _fields(fastest, joint)
        lean = self._as_policy(role, gpus, resolved)
        parts = LEAN_PARTS if not lean else ()
        searched = [self._trained(resolved, given, resolved.budget_bytes / part) for part in parts]
        if not lean and all(given.get(name, value) == value for name, value in _LEAST_KEPT.items()):
            searched.append(self._trained(resolved, {**given, **_LEAST_KEPT}, resolved.budget_bytes))
        options = sorted((it for it in searched if it is not None), key=lambda it: it.seconds)
        return with_leaner([fastest, *lean, *options])

    def _as_policy(self, role: Role, gpus: int, resolved: Resolved) -> list[Option]:
        """A critic with the layers of the policy in the leaner layouts of the policy, which differs in its head alone;
        none for other models and answers that are packed in another way."""
        models, work = self.rl.models, resolved.workload
        alike = role == "critic" and models[role] == valued(models["policy"])
        policy = self.train("policy", gpus) if alike else None
        layouts = [it.layout for it in (policy.leaner if policy is not None else ()) if it.layout is not None
                   and (it.sequences, it.seq_len) == (work.global_batch, work.seq_len)]  # fmt: skip
        return [self._option(Staged.of(resolved, layout)) for layout in layouts]

    def _trained(self, resolved: Resolved, given: Mapping[str, int], memory_bytes: float) -> Option | None:
        """The fastest training within so many bytes of a GPU. given: fields of the layout."""
        rules = tuple(fixed(name, value, f"{name}={value}") for name, value in given.items())
        space = resolved.space_under(self.rl.trainer_rules, self.rl.layout_rules, rules)
        outcome = search_of(resolved, space, top=1, tally=False, memory_bytes=memory_bytes).run()
        outcome.raise_if_interrupted()
        return self._option(Staged.of(resolved, outcome.top.rows[0][2])) if outcome.top.rows else None

    def _option(self, staged: Staged) -> Option:
        return of_training(staged, self.rl.work.updates * staged.closed_s)

    def _home(self, role: Role, gpus: int) -> Option | None:
        home = self.train(role, gpus)
        if home is None or home.layout is None:
            return None
        work = self.rl.work
        batch = self.rl.on(role, gpus, work.answers // work.updates, (home.sequences, home.seq_len))
        scores = [replace(it, seconds=it.by_answer.forward_share * it.seconds if it.by_answer is not None
                          else work.updates * forward_of(batch, it.layout), leaner=())
                  for it in (home, *home.leaner) if it.layout is not None]  # fmt: skip
        return replace(scores[0], leaner=tuple(scores[1:]))

    def _infer(self, role: Role, gpus: int) -> Option | None:
        rl, answers = self.rl, self.rl.work.answers
        if rl.by_train(role):
            return self._by_train(role, gpus)
        software, given = rl.software, rl.fixed.get("infer", {})
        parts, rules = (software.scoring_parts, software.scoring_rules) if software is not None else (None, ())
        found = []
        for packing in rl.packings(answers, gpus):
            resolved = rl.on(role, gpus, answers, packing)
            budgets = [resolved.budget_bytes / part for part in (1, *LEAN_PARTS)]
            found.append(fastest_forwards(resolved, budgets, given, parts, rules))
        # What fits into a smaller budget fits into the larger ones before it.
        fastest = [min((each[place] for each in found if len(each) > place), key=lambda it: it.seconds)
                   for place in range(max(map(len, found)))]  # fmt: skip
        # Activations and buffers are free after the call.
        return with_leaner([Option(seconds=it.seconds, peak_bytes=it.peak_bytes, kept_bytes=it.weights_bytes,
                                   layout=it.layout) for it in fastest])  # fmt: skip

    def by_train(self, call: Call) -> bool:
        """Whether a model that does not train scores by the layout of the policy: its options are one for each of
        those of the call that trains, in their order."""
        return call.kind == "infer" and self.rl.by_train(call.role)

    def _by_train(self, role: Role, gpus: int) -> Option | None:
        home, work = self.train("policy", gpus), self.rl.work
        if home is None:
            return None
        batch = self.rl.on(role, gpus, work.answers // work.updates, (home.sequences, home.seq_len))
        layouts = [it.layout for it in (home, *home.leaner) if it.layout is not None]
        first, *others = [Option(seconds=work.updates * it.seconds, peak_bytes=it.peak_bytes,
                                 kept_bytes=it.weights_bytes, layout=it.layout)
                          for it in forwards_by(batch, layouts)]  # fmt: skip
        return replace(first, leaner=tuple(others))

    def _generate(self, gpus: int, lag: int) -> Option | None:
        rl, engines = self.rl, shipped_engines()
        engine = rl.software.engine if rl.software is not None else engines.of(rl.engine)
        served = replace(Served.of(rl.models["policy"], rl.weights, "bf16", engines, rl.engine),
                         engine=engine)  # fmt: skip
        site = sites_of(part_of(rl.cluster, gpus))[0]
        fixed = rl.fixed.get("generate", {})
        space = space_of(site, served, {"chunk_tokens": engine.chunk_tokens, **fixed}, across_nodes=True)
        rows = [(replace(instance, chunk_tokens=engine.group_chunk(instance.layout.attention_dp)), most)
                for instance, most in zip(space.instances, space.most, strict=True)
                if rl.starts(instance.layout, most, lag)]  # fmt: skip
        if not rows:
            return None
        instances, most = zip(*rows, strict=True)
        columns = pool(instances)
        columns = replace(columns, instances=np.array(most, dtype=float),
                          memory_bytes=columns.memory_bytes * rl.memory_share / MEMORY_SHARE)  # fmt: skip
        steps = max(lag, 1)
        rollout = replace(rl.rollout, prompts=float(rl.work.prompts * steps))
        time = rollout_time(columns, engines.constants, rollout)
        seconds = time.seconds / steps
        hosted = np.where(rl.ray_engine & (columns.gpus > columns.instances), time.iterations / steps, 0.0)
        best = int(np.argmin(seconds + self.constants.iteration_s * hosted))
        if not np.isfinite(seconds[best]):
            return None
        weights = float(columns.weights_bytes[best])
        return Option(
            seconds=float(seconds[best]), peak_bytes=site.gpu.memory_bytes * MEMORY_SHARE,
            kept_bytes=weights, instance=instances[best], instances=most[best],
            cache_sequences=round(float(time.sequences[best])), hosted_iterations=float(hosted[best]),
        )  # fmt: skip

    def moved_s(self, num_bytes: float, span: int) -> float:
        """Seconds in which each GPU receives so many bytes over the links of `span` neighbouring GPUs. Tensors of all
        ranks are gathered whole before an engine cuts them anew (verl-project/verl@1dda039b, per_tensor_generator;
        NVIDIA-NeMo/RL@7ea279ab, the packed broadcast of its refit)."""
        if span < 2:
            return 0.0
        curve = link_curve(self.rl.cluster.levels, "p2p", 2, span // 2)
        return float(collectives.seconds(curve, num_bytes)[0])

    @property
    def host_bytes(self) -> float:
        """Bytes of host memory that the models of a GPU may take."""
        return self.rl.resolved.host_bytes

    def weights_bytes(self, role: Role) -> float:
        """Bytes of all weights of a model."""
        return self.whole_bytes[role]

    def copied_s(self, num_bytes: Array) -> Array:
        """Seconds in which each GPU copies so many bytes to its host, or back."""
        return self.constants.copies * num_bytes / float(self.rl.resolved.rates.pcie_bw_bytes_per_s)
