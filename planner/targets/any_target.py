"""The target `any`: every legal layout, whether or not a framework runs it."""

from .base import Target

TARGET = Target(
    "any",
    "the whole space, whoever can run it",
    "generic",
    "no limits beyond what the model and batch allow",
    stages="recompute",
    mixed_lengths=("planned",),
)
