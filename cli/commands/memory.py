"""`meshwright memory`: what a layout holds on each stage, buffer by buffer."""

from __future__ import annotations

from typing import Any

import typer

from .. import options, requests, tables
from ..console import FORMAT_VERSION, Terminal


def command(
    context: typer.Context,
    source: options.RequestOrPlan = None,
    layout: options.LayoutId = None,
    choice: options.Choice = 1,
    model: options.Model = None,
    gpu: options.Gpu = None,
    gpus: options.Gpus = None,
    cluster: options.Cluster = None,
    seq_len: options.SeqLen = None,
    lengths: options.Lengths = None,
    packed: options.Packed = None,
    global_batch: options.GlobalBatch = None,
    dtype: options.Dtype = None,
    optimizer: options.Optimizer = None,
    lora: options.LoraOption = None,
    train_layers: options.TrainLayers = None,
    max_memory: options.MaxMemory = None,
    set_: options.SetOption = None,
    target: options.Target = None,
    stack: options.Stack = None,
) -> None:
    """Show the memory of a layout, per pipeline stage and buffer.

    Of a layout by its id (--layout), of layout --choice of a plan file, or else
    of the layout that `plan` would choose.

    \b
    Examples:
      meshwright memory request.yaml --layout tp8-dp1-mbs1-z1-rsel
      meshwright memory plan.json --choice 2
    """
    from ...planner import api
    from ...planner.request import request_from_dict

    flags = {name: value for name, value in locals().items() if name in _FLAGS}
    terminal: Terminal = context.obj
    if source is not None and requests.is_plan(source):
        document = requests.load_plan(source)
        if layout is not None:
            document = api.evaluate(request_from_dict(document["request"]), layout).model_dump(mode="json")
    else:
        asked = requests.build(source, set_, flags)
        with terminal.progress("searching") as progress:
            found = api.evaluate(asked, layout) if layout is not None else api.plan(asked, progress=progress)
        document = found.model_dump(mode="json")
    candidate = requests.candidate(document, 1 if layout is not None else choice)
    if terminal.settings.json:
        terminal.write_json(memory_document(candidate))
    terminal.show(tables.memory_screen(document, candidate))
    requests.tell_warnings(terminal, document)


def memory_document(candidate: dict[str, Any]) -> dict[str, Any]:
    """The JSON form: one item per stage."""
    return {
        "format_version": FORMAT_VERSION,
        "kind": "memory",
        "layout_id": candidate["layout_id"],
        "items": candidate["memory"],
    }


_FLAGS = options.WORKLOAD_FLAGS | {"target", "stack", "max_memory"}
