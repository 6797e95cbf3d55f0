"""The knowledge of an import beyond the table of a target: older names, harmless options, gaps."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...errors import FieldProblem, InputError, nearest
from .adapter_choices import CHOSEN
from .argv import Arguments
from .option_lists import Option
from .options import Facts, NoCounterpartError, Table

# Parts of option names that never concern layout, model or batch, in any framework.
_SAYS_NOTHING = re.compile(
    r"(^|[-_.])(data|dataset|path|dir|file|folder|log|logging|wandb|swanlab|mlflow|tensorboard|save|load|ckpt|checkpoint|checkpoints|"
    r"seed|lr|decay|warmup|eval|test|valid|validation|iters?|iteration|iterations|interval|split|\w*tokenizer|vocab|merge|"
    r"prompt|timers?|timing|timeout|profil\w*|exit|nccl|cache|workers|adam|beta1|beta2|eps|clip|loss|init|hysteresis|"
    r"name|project|group|entity|port|addr|host|backend|epochs?|samples|tokens|report|print|dump|debug|task|"
    r"resume|async|sync|metric|metrics|monitor|memory|trace|kill|job|version|comment|tags?|url|api|key|user|cuda|"
    r"initialization|sampling|shuffle|mmap|impl|append|mask|eod|bos|eos|pad|fim|hub|rate|random|trust|token|template)([-_.]|$)"
)  # fmt: skip

# First words of such options.
_ASIDE = re.compile(
    r"^(--)?(no-)?(log|save|load|tensorboard|wandb|profile|eval|print|report|exit|debug|dump|monitor|ckpt|lr|min-lr|adam|"
    r"train-(iters|samples|tokens|data|weighted)|valid|test|data-(?!parallel)|tokenizer|vocab|merge|seed|clip|init|timing|"
    r"checkpoint-(?!activ))"
)
# Fields of a plan that are 1 or more.
_POSITIVE = {"tp", "cp", "pp", "ep", "etp", "vpp", "micro_batch", "workload.seq_len", "workload.global_batch"}
# Fields of a plan that multiply to the GPUs.
DEGREES = frozenset({"tp", "cp", "pp", "dp"})
# Parts of option names that may change one of them.
_MAY_CHANGE = re.compile(
    r"parallel|expert|moe|layer(?!norm)|hidden|head|recompute|pipeline|stage|batch|offload|shard|zero|fp8|fp4|precision|"
    r"attention|rope|rotary|ffn|mlp|embedding|window|mtp|lora|seq-?_?len|topk|capacity|(^|[-_.])(tp|pp|cp|ep|dp)([-_.]|$)"
)


# Further words in names of options that other programs have for a model, its data or its states.
_BEARS = re.compile(r"len|token|modul|model|gpu|device|freez|tun|optim|dtype|bits?\b|quant|image|video|audio|vision|"
                    r"tower|kernel|adapter|prun|teacher|draft|compress|sparse|size|ratio|loss|dropout|memory")
_UNKNOWN = "unknown: it may change the layout"


@dataclass(frozen=True)
class Reading:
    """The knowledge of a format's import beyond the table."""

    # Option name in other releases and forks -> the type of its value.
    older: Mapping[str, Option] = field(default_factory=dict)
    # Renames the settings of older names to those of the release; adds notes and gaps.
    modernise: Callable[[Arguments], None] = lambda arguments: None
    # Regular expression of options without an entry -> their effect.
    changes: Mapping[str, str] = field(default_factory=dict)
    # Options that exclude one another.
    exclusive: tuple[tuple[str, ...], ...] = ()
    # Harmless unknown options, in addition to the common list.
    harmless: str = r"(?!)"
    # Program -> a sentence if it trains an unsupported kind of model, "" otherwise.
    other_program: Callable[[str], str] = lambda program: ""
    # The framework whose forks have options of their own, which are named and taken to change no step where their names
    # have no word of a layout; "": they are gaps.
    forked: str = ""

    def change_of(self, option: str) -> str:
        """The effect of an option without an entry; "" for none."""
        return next((text for pattern, text in self.changes.items() if re.fullmatch(pattern, option)), "")

    def says_nothing(self, option: str) -> bool:
        """Whether an unknown option can be ignored."""
        if self.change_of(option):
            return False
        if _ASIDE.match(option) or re.search(self.harmless, option):
            return True
        return bool(_SAYS_NOTHING.search(option)) and not _MAY_CHANGE.search(option)


def may_change(option: str) -> bool:
    """Whether a name has a word of a layout, a model or a batch in it."""
    return _MAY_CHANGE.search(option) is not None


def judge(arguments: Arguments, reading: Reading, table: Table) -> None:
    """Sorts the options: rejects contradictions, names the gaps, drops harmless options.

    A gap is an option that is not understood and may change layout, model or batch. With a gap there is no comparison.
    """
    older = frozenset(reading.older)
    listed, matters = table.options | older, table.telling | older
    arguments.problems = [problem for problem in arguments.problems if not problem.field or problem.field in listed]
    arguments.problems += _contradictions(arguments, reading)
    gaps = [doubt for doubt in arguments.unclear if reading.change_of(doubt.field) or _concerns(doubt.field, matters)]
    gaps += [problem for name, problem in arguments.blocks.items()
             if any(option.startswith(f"{name}.") for option in matters.difference(arguments.settings))]  # fmt: skip
    aside = list[str]()
    gaps += [_problem(arguments, name, text) for name, value in arguments.settings.items()
             if _is_set(value) and (text := reading.change_of(name))]  # fmt: skip
    for name, line in arguments.unknown.items():
        if name in arguments.off:
            continue
        text = reading.change_of(name) or ("" if reading.says_nothing(name) else _UNKNOWN)
        if text == _UNKNOWN and reading.forked and arguments.settings and _of_fork(name, matters):
            aside.append(name)
        elif text:
            gaps.append(_problem(arguments, name, text, line))
    if aside:
        arguments.unknown = {name: line for name, line in arguments.unknown.items() if name not in aside}
        arguments.notes.append(f"{', '.join(aside)}: of a program other than {reading.forked}'s: taken to change no "
                               "step")  # fmt: skip
    if text := reading.other_program(arguments.program):
        hint = "give the file that starts the training" if text.endswith("does not train") else ""
        gaps.append(FieldProblem(text, hint=hint))
    _name_others(arguments, reading, gaps)
    known = {(gap.field, gap.message) for gap in arguments.gaps}
    arguments.gaps += [gap for gap in gaps if (gap.field, gap.message) not in known]
    arguments.unclear = []


def pass_over(arguments: Arguments, framework: str, known: Collection[str], reading: Reading) -> None:
    """Drops unknown options outside of blocks, with a sentence, for a framework that looks for its own alone. known:
    those of the framework; one that is near to one of them stays, and so does one with an effect that is known, and all
    of a file without an option of the framework."""
    if not arguments.settings:
        return
    dropped = [name for name in arguments.unknown if "." not in name and name not in known
               and not reading.change_of(name) and not reading.says_nothing(name) and name not in arguments.off
               and not nearest(name, known, cutoff=0.85)]  # fmt: skip
    for name in dropped:
        del arguments.unknown[name]
    if dropped:
        arguments.notes.append(f"{', '.join(dropped)}: {framework} has no such option and passes over it")


def _name_others(arguments: Arguments, reading: Reading, gaps: Iterable[FieldProblem]) -> None:
    """Names options of an equal job that is not read, and the parameters that a gap depends on."""
    others = {name: line for name, line in arguments.of_equals.items()
              if reading.change_of(name) or not reading.says_nothing(name)}  # fmt: skip
    if others:
        arguments.notes.append(f"{', '.join(others)} (line {min(others.values())}): of a job with otherwise the same "
                               "options, which is not the one that is read")  # fmt: skip
    if arguments.parameters and any(re.search(r"\$\{?\d", gap.message) for gap in gaps):
        listed = ", ".join(f"{place} {name}" for place, name in sorted(arguments.parameters.items()))
        arguments.notes.append(f"the script takes by --arg, in turn: {listed}")


def read_facts(arguments: Arguments, table: Table) -> Facts:
    """The facts in the settings. A value that no plan can hold becomes a gap.

    Contradictory values join `problems`, without those that follow from an option that is not read. In files that have
    gaps and no problems they are gaps.
    """
    facts: Facts = {}
    errors: list[tuple[InputError, tuple[str, ...]]] = []
    failed = {problem.field for problem in (*arguments.problems, *arguments.gaps) if problem.field}
    for entry in table.entries:
        try:
            facts |= entry.read(dict(arguments.settings), facts)
        except NoCounterpartError as error:
            arguments.gaps.append(of_error(arguments, error, entry.options))
        except InputError as error:
            errors.append((error, entry.options))
        except KeyError:  # an earlier entry could not read this fact
            if not errors and not arguments.gaps and not arguments.problems:
                raise
    errors += [(error, options) for error, options in _below_one(arguments, facts, table)
               if not any(options[0] in other.message for other, _ in errors)]  # fmt: skip
    if arguments.gaps and not arguments.problems:
        arguments.gaps += [of_error(arguments, error, options) for error, options in errors]
    else:
        arguments.problems += [
            of_error(arguments, error, options)._replace(**_named(arguments, error)) for error, options in errors
            if not any(name in options or name in error.message for name in failed)
        ]  # fmt: skip
    return facts


def _below_one(arguments: Arguments, facts: Facts, table: Table) -> list[tuple[InputError, tuple[str, ...]]]:
    """An error for each degree or size that is less than 1, with its option."""
    out: list[tuple[InputError, tuple[str, ...]]] = []
    for entry in table.entries:
        for name in _POSITIVE.intersection(entry.fields):
            value = facts.get(name)
            option = next((option for option in entry.options if arguments.settings.get(option) == value), "")
            if type(value) is int and value < 1 and option:
                out.append((InputError(f"{option}: `{value}` is not 1 or more"), (option,)))
    return out


@contextmanager
def located(arguments: Arguments, table: Table) -> Iterator[None]:
    """Adds file and line to an InputError about degrees, those of the largest degree that it names, or about another
    field, which its details name."""
    try:
        yield
    except InputError as error:
        fields = {error.details["field"]} if "field" in error.details else DEGREES
        options = [option for entry in table.entries if fields.intersection(entry.fields)
                   for option in entry.options if type(arguments.settings.get(option)) is int]  # fmt: skip
        if not options:
            raise
        degrees, text = {option: int(arguments.settings[option]) for option in options}, error.message
        name = max(options, key=lambda option: (f"p {degrees[option]} " in text, abs(degrees[option])))
        problem = _problem(arguments, name, text)
        raise InputError.of([problem._replace(hint=error.hint)]) from None


def placed(problem: FieldProblem, arguments: Arguments, table: Table, facts: Facts) -> FieldProblem:
    """The problem of a field of the model at the option that states it. facts: those of the table, all of them read."""
    name, given = f"model.{problem.field}", arguments.settings
    options = [option for entry in table.entries if name in facts and name in entry.read(dict(given), facts)
               for option in entry.options if given.get(option) == facts[name]]  # fmt: skip
    if problem.file or not options:
        return problem
    return _problem(arguments, options[0], problem.message)._replace(hint=problem.hint)


def _of_fork(name: str, matters: Iterable[str]) -> bool:
    """Whether an unknown option has no word of a layout in its name, and is not one that matters, misspelt."""
    return not (_MAY_CHANGE.search(name) or _BEARS.search(name) or nearest(name, matters, cutoff=0.85))


def _concerns(name: str, options: Iterable[str]) -> bool:
    """Whether an option or block is one of `options` or holds one; "" is all."""
    return not name or any(option == name or option.startswith(f"{name}.") for option in options)


def _is_set(value: Any) -> bool:
    """Whether an option or a block is more than switched off."""
    if isinstance(value, Mapping):
        return value.get("enabled", True) not in (False, "auto")  # which a trainer fills in, as off
    return value not in (False, None, 0, "", "none")


def of_error(arguments: Arguments, error: InputError, options: tuple[str, ...]) -> FieldProblem:
    given = [name for name in options if name in arguments.settings] or list(options)
    name = next((name for name in sorted(given, key=len, reverse=True) if name in error.message), given[0])
    text = error.message.removeprefix(name).lstrip(" :")
    return FieldProblem(text, file=arguments.files.get(name, ""), line=arguments.lines.get(name, 0), field=name,
                        hint=error.hint)  # fmt: skip


def _named(arguments: Arguments, error: InputError) -> dict[str, Any]:
    """The place of the option that an error begins with, where it is one of another entry; {} for none."""
    name = re.split(r"[: ]", error.message, maxsplit=1)[0]
    if name not in arguments.settings:
        return {}
    text = error.message.removeprefix(name).lstrip(" :")
    return {"message": text, "field": name, "file": arguments.files.get(name, ""), "line": arguments.lines.get(name, 0)}


def _problem(arguments: Arguments, name: str, text: str, line: int = 0) -> FieldProblem:
    return FieldProblem(text, file=arguments.files.get(name, ""), line=line or arguments.lines.get(name, 0), field=name)


def _contradictions(arguments: Arguments, reading: Reading) -> list[FieldProblem]:
    out = []
    for group in reading.exclusive:
        given = [name for name in group if arguments.settings.get(name)]
        if len(given) > 1:
            problem = _problem(arguments, given[-1], f"cannot be given together with {given[0]}")
            out.append(problem._replace(hint="keep one"))
    return out


def fields_of(arguments: Arguments, table: Table) -> set[str]:
    """The fields of a plan that problems and gaps leave unknown."""
    failed = [problem.field for problem in (*arguments.problems, *arguments.gaps) if problem.field]
    return arguments.open_fields | {name for entry in table.entries for name in entry.fields
                                    if any(_concerns(field, entry.options) for field in failed)}  # fmt: skip


def stated_facts(arguments: Arguments, table: Table, facts: Facts) -> Facts:
    """The facts of options that are given, without those that a gap leaves unknown."""
    open_fields, named = fields_of(arguments, table), set[str]()
    for entry in table.entries:
        if not arguments.settings.keys() & set(entry.options):
            continue
        named |= set(entry.fields)
        try:
            of_entry = set(entry.read(dict(arguments.settings), facts))
        except (InputError, KeyError):
            continue
        if any(gap.field and _concerns(gap.field, entry.options) for gap in arguments.gaps):
            open_fields |= of_entry
        named |= of_entry
    return {name: value for name, value in facts.items() if name in named - open_fields - {CHOSEN}}
