"""Reads config modules in Python without running them: the options that a function passes to its container.

The code that follows their functions (recipes/) is loaded with the first module: plans need none.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from ...errors import FieldProblem, InputError
from .argv import Arguments
from .option_lists import OptionList
from .options import Settings
from .python_values import name_of, place_in_nemo, value_of
from .torchtitan import optimizers

if TYPE_CHECKING:
    from .recipes.state import Recipe
    from .recipes.values import Doubt, Given

# The call that makes a recipe of NeMo.
NEMO_RECIPE = "pretrain"
# The function that sets positions and norms of a model, and the setting that holds its text.
AS_PLANNED = "as_planned"
# The setting that holds the name of a model of the Hugging Face Hub.
HUB_MODEL = "model.hf_model_id"
_HUB_CALLS = ("from_hf_pretrained", "from_hf_config")
# Functions that make a block by its name.
_NAMING = ("get_mixed_precision_config", "default_peft_config")
# Kinds of options that hold one value, not a block.
_ONE_VALUE = ("int", "float", "str", "bool", "flag")
_RECOMPUTATION = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory budget", "None": "none"}


def read_constants(path: str, text: str, options: OptionList, prefix: str) -> Arguments:
    """Upper-case constants of a module, as `prefix.NAME`."""
    arguments = Arguments()
    for node in _module(path, text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            name = f"{prefix}.{node.targets[0].id}"
            arguments.lines[name] = node.lineno
            try:
                arguments.settings[name] = value_of(node.value, {})
            except ValueError:
                arguments.fail(name, "is not a plain value", node.lineno, path)
    return arguments


def read_config_module(
    path: str, text: str, options: OptionList, container: str, function: str | None = None,
    beside: Mapping[str, str] | None = None, bases: Mapping[str, Settings] | None = None,
) -> Arguments:  # fmt: skip
    """The options that a function of the module passes to `container(...)`, or sets on a container made elsewhere.

    function: its name; None: the only such function. beside: path -> text of modules that it may call. bases: function
    of the framework -> the options of the container that it returns.
    """
    from .recipes.follower import Follower
    from .recipes.subclasses import plain_calls

    modules = {where: _module(where, other) for where, other in {path: text, **(beside or {})}.items()}
    modules[path], completions = plain_calls(modules[path], container)
    single = (name for name, option in options.options.items() if option.kind in _ONE_VALUE)
    follower = Follower(modules, container, frozenset(name.rpartition(".")[2] for name in single),
                        understood=(AS_PLANNED,), nested=container == NEMO_RECIPE)  # fmt: skip
    makers = follower.makers(path)
    arguments = Arguments()
    chosen = function if function is not None else makers[-1] if len(makers) == 1 else None
    if chosen is None or not follower.has(path, chosen):
        arguments.problems.append(_which(path, function, makers, container))
        return arguments
    recipe = follower.follow(path, chosen)
    families = {where: _family(module, where) for where, module in modules.items()}
    _start(arguments, recipe, bases or {}, modules)
    for option, given in recipe.given.items():
        if any(_is_code(holder, options) for holder in _outwards(option)[1:]):
            continue
        for name in [name for name in arguments.settings if name.startswith(f"{option}.")]:  # a block anew
            del arguments.settings[name]
        for name, part in _block(arguments, option, given, options, bases or {}).items():
            _add(arguments, name, part, options, families[given.path] if option else "")
    for doubt in dict.fromkeys(recipe.doubts):
        _doubt(arguments, doubt, options)
    for completion in completions.get(chosen, ()):
        arguments.doubt(completion.option, f"{completion.name} sets it once it is made", completion.line, path)
    _as_planned(arguments, modules[path])
    return arguments


def _as_planned(arguments: Arguments, module: ast.Module) -> None:
    changes = (node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == AS_PLANNED)
    for node in changes:
        arguments.settings[AS_PLANNED], arguments.lines[AS_PLANNED] = ast.unparse(node), node.lineno


def read_modules(files: Mapping[str, str], options: OptionList, given: Sequence[str], container: str,
                 read_other: Callable[[str, str, OptionList], Arguments],
                 bases: Mapping[str, Settings] | None = None) -> Arguments:  # fmt: skip
    """The options of the first module, which may call the others, then those of files that are no modules.

    given: the name of the function that makes the config. read_other: reads a YAML or TOML; the last one given wins.
    """
    modules = {path: text for path, text in files.items() if path.endswith(".py")}
    arguments = Arguments()
    if modules:
        (path, text), *others = modules.items()
        function = given[0] if given else None
        arguments.add(read_config_module(path, text, options, container, function, dict(others), bases), path)
    for path in (path for path in files if path not in modules):
        arguments.add(read_other(path, files[path], options), path)
    return arguments


def _which(path: str, function: str | None, makers: list[str], container: str) -> FieldProblem:
    """The problem of a module without the function, or with several."""
    if function is None and makers:
        names = ", ".join(makers[:8]) + (", ..." if len(makers) > 8 else "")
        return FieldProblem(f"has {len(makers)} functions that return {container}: {names}", file=path,
                            hint=f"name one: --arg {makers[0]}")  # fmt: skip
    names = f"`{function}`" if function else "a function"
    return FieldProblem(f"has no {names} that returns {container}(...)", file=path)


def _start(arguments: Arguments, recipe: Recipe, bases: Mapping[str, Settings],
           modules: Mapping[str, ast.Module]) -> None:  # fmt: skip
    """The options of the base config of a recipe, where a function of the framework makes it."""
    base = recipe.given.pop("", None)
    if base is None:
        return
    name = name_of(base.node.func) if isinstance(base.node, ast.Call) else ""
    if name in bases:
        arguments.settings |= bases[name]
        arguments.lines |= dict.fromkeys(bases[name], base.node.lineno)
        return
    lines = (node.lineno for node in modules[base.path].body if isinstance(node, ast.ClassDef) and node.name == name)
    if line := next(lines, 0):
        text, hint = f"starts from {name}, a class (line {line}) with code of its own", ""
    else:
        text, hint = f"starts from {name}, which is in another file", f"give that file too{place_in_nemo(name)}"
    arguments.gaps.append(FieldProblem(text, file=base.path, line=base.node.lineno, hint=hint))


def _doubt(arguments: Arguments, doubt: Doubt, options: OptionList) -> None:
    """An expression that cannot be followed; an option that the release does not have is one of those."""
    whole = (part for part in _outwards(doubt.option) if part in options.options and not _has_options(part, options))
    name = next(whole, doubt.option)
    if name and name not in options.options and not _has_options(name, options):
        arguments.unknown.setdefault(name, doubt.line)
        arguments.files[name] = doubt.path
    else:
        (arguments.unclear if name else arguments.gaps).append(FieldProblem(doubt.text, name, doubt.path, doubt.line))


def _outwards(name: str) -> list[str]:
    """An option, then the blocks that hold it, from the inside."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _is_code(name: str, options: OptionList) -> bool:
    return name in options.options and options.options[name].kind == "code"


def _has_options(name: str, options: OptionList) -> bool:
    """Whether an option is a block of others."""
    return name in options.blocks


def _family(tree: ast.Module, path: str) -> str:
    """The model family of torchtitan, from the import of model_registry or from the folder."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    families = {alias.asname or alias.name: (node.module or "").rpartition(".")[2] for node in imports
                for alias in node.names}  # fmt: skip
    return families.get("model_registry") or PurePath(path).parent.name


def _block(arguments: Arguments, name: str, given: Given, options: OptionList,
           bases: Mapping[str, Settings]) -> dict[str, Given]:  # fmt: skip
    """An option, or those of a block that is written as a call; its class is one too where the release lists it.

    A block of which only a run knows the rest is a doubt about the options that nothing sets.
    """
    from .recipes.values import Given

    arguments.blocks.pop(name, None)
    node = given.node.value if isinstance(given.node, ast.Subscript) else given.node  # one of several that are returned
    if not _has_options(name, options) or _hub_model(node) is not None or given.plain() is not None:
        return {name: given}
    call = node if isinstance(node, ast.Call) else ast.copy_location(ast.Call(node, [node], []), node)
    maker = name_of(call.func).rpartition(".")[2]
    if maker in _NAMING and call.args:
        named = {f"{name}.{keyword.arg}": Given(keyword.value, given.names, given.path)
                 for keyword in call.keywords if keyword.arg}  # fmt: skip
        return {name: Given(call.args[0], given.names, given.path), **named}
    parts = {option: Given(ast.copy_location(ast.Constant(value), node), {}, given.path)
             for option, value in bases.get(maker, {}).items() if option.startswith(f"{name}.")}  # fmt: skip
    parts |= {f"{name}.{keyword.arg}": Given(keyword.value, given.names, given.path) for keyword in call.keywords
              if keyword.arg and (maker not in bases or f"{name}.{keyword.arg}" in options.options)}  # fmt: skip
    of_class = name in options.options and options.options[name].kind == "class"
    wrong = options.options[name].wrong(maker) if of_class else None if maker.endswith("Config") else ""
    known = maker in bases or wrong is None
    if (of_class and maker not in bases and known) or name == "mixed_precision":
        parts[name] = Given(ast.copy_location(ast.Constant(maker), node), {}, given.path)
    if (not known and name not in parts) or call.args or any(keyword.arg is None for keyword in call.keywords):
        text = wrong if wrong and node is call else f"is `{ast.unparse(node)[:60]}`, which only a run can tell"
        arguments.blocks[name] = FieldProblem(text, name, given.path, node.lineno)
    return parts


def _hub_model(node: ast.expr) -> ast.expr | None:
    """The argument of the call that loads a model from the Hub, or None."""
    calls = (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))
    return next((call.args[0] for call in calls if name_of(call.func).endswith(_HUB_CALLS) and call.args), None)


def _add(arguments: Arguments, name: str, given: Given, options: OptionList, family: str) -> None:
    from .recipes.values import Given

    node, path = given.node, given.path
    arguments.lines[name] = node.lineno
    arguments.files[name] = path
    if name == "model_spec":
        _registered(arguments, node, family)
    elif name == "mixed_precision" and (text := _made_elsewhere(node, options)):
        arguments.doubt(name, text, node.lineno, path, "give the file of that function, or the name of a precision")
    elif name == "model" and (hub := _hub_model(node)) is not None:
        _typed(arguments, HUB_MODEL, Given(hub, given.names, path), options)
    elif name not in options.options:
        arguments.unknown[name] = node.lineno
        if isinstance(node, ast.Constant) and node.value in (None, False):
            arguments.off.add(name)
    elif name == "activation_checkpoint":
        text = ast.unparse(node)
        arguments.settings[name] = next((kind for word, kind in _RECOMPUTATION.items() if word in text), text)
    elif isinstance(node, ast.Constant) and node.value is None:
        arguments.settings.pop(name, None)
    elif name.endswith("activation_func") and isinstance(node, ast.Name):
        arguments.settings[name] = node.id
    elif _is_code(name, options):
        arguments.settings[name] = ast.unparse(node)
    elif name == optimizers.OPTION and options.target == "torchtitan":
        arguments.settings[name] = optimizers.of_call(node)
    elif options.options[name].kind != "any" or "." in name:  # others (dataloader, checkpoint) do not affect layouts
        _typed(arguments, name, given, options)


def _made_elsewhere(node: ast.expr, options: OptionList) -> str:
    """Records that a block is unknown because a function of another file makes it."""
    kind = node.value if isinstance(node, ast.Constant) else None
    return f"is what {kind} returns" if isinstance(kind, str) and options.options["mixed_precision"].wrong(kind) else ""


def _registered(arguments: Arguments, node: ast.expr, family: str) -> None:
    """Stores the model that torchtitan names, and the conversion of its layers."""
    for call in ast.walk(node):
        if not isinstance(call, ast.Call) or not name_of(call.func).endswith("model_registry") or not call.args:
            continue
        flavor = call.args[0]
        if isinstance(flavor, ast.Constant) and isinstance(flavor.value, str):
            arguments.settings["model_spec"] = f"{family}/{flavor.value}"
        converters = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "converters"]
        if any("Float8" in text or "MXFP8" in text for text in converters):
            arguments.settings["converters"] = "float8"
            arguments.notes += ["the mx converter is priced as float8"] if "MXFP8" in converters[0] else []
        elif converters and converters != ["None"] and converters != ["[]"]:
            text = f"converts layers by {converters[0].partition('(')[0].strip('[')}"
            arguments.gaps.append(FieldProblem(text, "model_spec", arguments.files.get("model_spec", ""), call.lineno))


def _typed(arguments: Arguments, name: str, given: Given, options: OptionList) -> None:
    """Stores the value of an option, or a doubt where the value is computed."""
    line = given.node.lineno
    try:
        value = value_of(given.node, given.names)
    except ValueError:
        arguments.settings.pop(name, None)
        text = f"`{ast.unparse(given.node)[:60]}` is computed when the module runs"
        arguments.doubt(name, text, line, given.path, "write its value into a copy of the file")
        return
    arguments.settings.pop(name, None)
    if value is None:
        return
    if name in options.options:
        whole = options.options[name].kind == "int" and isinstance(value, float) and value.is_integer()
        arguments.record(options.options[name], int(value) if whole else value, line, given.path)
    else:
        arguments.settings[name], arguments.lines[name] = value, line


def _module(path: str, text: str) -> ast.Module:
    from .recipes.nemo_run import plain

    try:
        return plain(ast.parse(text), NEMO_RECIPE)
    except SyntaxError as error:
        message = f"not valid Python: {error.msg}"
        raise InputError.of([FieldProblem(message, file=path, line=error.lineno or 0)]) from None
