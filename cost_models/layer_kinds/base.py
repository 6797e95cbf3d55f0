"""The interface of a kind of mixer (`specs.model.Mixer`): parameters, operations, and splits over ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass
from typing import Any

from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import LayerOperations
from ..specs.model import Mixer


def least(size: Field[Any]) -> int:
    """The least number that a size of a mixer may be: 0 where that means that a part is not there."""
    return int(size.metadata.get("least", 0 if size.default == 0 else 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerKind:
    """One kind of mixer. Its functions take the mixer's spec, of the class `spec`."""

    spec: type[Mixer]  # its sizes
    parameters: Callable[[Any, int], dict[str, int]]  # (spec, hidden) -> elements by name
    replicated: tuple[str, ...]  # names of `parameters` that every rank of a tensor-parallel group has whole
    matrices: Callable[[Any, int], tuple[Matrix, ...]]  # (spec, hidden) -> those that Muon orthogonalises
    # Adds the operations of one rank: products in and out, and the scan between them. Tensor parallelism splits heads.
    add: Callable[[Builder, LayerOperations, Any], None]
    # spec -> what ranks that split heads divide, by its name in messages: how many, and whether several ranks of
    # context parallelism may have the same one.
    heads: Callable[[Any], Mapping[str, tuple[int, bool]]]
    kernels: float  # launched per forward pass beside those of two projections and a norm
    # spec -> numbers that serving keeps of a sequence on all ranks together, in 16 bits and in 32 (vLLM 0.32,
    # MambaStateShapeCalculator, and MambaStateDtypeCalculator with `auto`); None: none of fixed size.
    state: Callable[[Any], tuple[int, int]] | None
    graph_part: str = "mixer"  # of cuda_graphs.PARTS, the one that holds it

    @property
    def name(self) -> str:
        """The name in plans, screens and the explicit form of a model."""
        return self.spec.kind
