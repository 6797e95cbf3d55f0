"""What a recipe means, or the gap that it leaves, statement by statement: nothing is dropped without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_recipes import HEAD, imported

# The layout of two context-parallel ranks.
WIDE = "tp2-nosp-cp2r-dp2-mbs2-z1-rnone"
# Statement after `cfg = base()` -> the layout that it gives.
KNOWN = [
    ("m = cfg.model\nm.context_parallel_size = 2", WIDE),
    ("m = cfg\nk = m.model\nk.context_parallel_size = 2", WIDE),
    ("cfg.train.__dict__['micro_batch_size'] = 8", "tp2-nosp-dp4-mbs8-z1-rnone"),
    ("setattr(cfg.model, 'context_parallel_size', 2)", WIDE),
    ("object.__setattr__(cfg.model, 'context_parallel_size', 2)", WIDE),
    ("cfg.model.__setattr__('context_parallel_size', 2)", WIDE),
    ("cfg.model.context_parallel_size, cfg.train.micro_batch_size = 2, 1", "tp2-nosp-cp2r-dp2-mbs1-z1-rnone"),
    ("cfg.model.context_parallel_size = cfg.train.micro_batch_size = 2", WIDE),
    ("match SEQUENCE:\n"
     "    case 4096:\n"
     "        cfg.model.context_parallel_size = 2\n"
     "    case _:\n"
     "        cfg.model.context_parallel_size = 4", WIDE),
    ("with scope():\n    cfg.model.context_parallel_size: int = 2", WIDE),
    ("if (n := 2) > 1:\n    cfg.model.context_parallel_size = n", WIDE),
    ("(m := cfg.model).context_parallel_size = 2", WIDE),
    ("cfg.model.tensor_model_parallel_size *= 2", "tp4-nosp-dp2-mbs2-z1-rnone"),
    ("for n in (1, 2):\n    cfg.model.context_parallel_size = n", WIDE),
    ("for name, n in {'context_parallel_size': 2}.items():\n    setattr(cfg.model, name, n)", WIDE),
    ("[setattr(cfg.model, n, 2) for n in ('context_parallel_size',)]", WIDE),
    ("cfg.train = dataclasses.replace(cfg.train, micro_batch_size=4)", "tp2-nosp-dp4-mbs4-z1-rnone"),
    ("def f(c):\n    c.model.context_parallel_size = 2\nf(cfg)", WIDE),
    ("def f(m):\n    m.context_parallel_size = 2\nf(cfg.model)", WIDE),
    ("for n in (2, 4, 8):\n    if n == 4:\n        break\n    cfg.model.context_parallel_size = n", WIDE),
    ("d = [cfg.model]\nd[0].context_parallel_size = 2", WIDE),
    ("def f(c, **k):\n    c.model.context_parallel_size = k['cp']\nf(cfg, cp=2)", WIDE),
    ("mods = []\n"
     "mods.append('core_attn')\n"
     "cfg.model.recompute_granularity='selective'\n"
     "cfg.model.recompute_modules = mods", "tp2-nosp-dp4-mbs2-z1-rsel"),
    ("mods = ['core_attn']\n"
     "cfg.model.recompute_granularity='selective'\n"
     "cfg.model.recompute_modules = mods\n"
     "mods.append('mlp')", "tp2-nosp-dp4-mbs2-z1-rsel(attn+mlp)"),
    ("cfg.model.recompute_granularity='selective'\n"
     "cfg.model.recompute_modules = ['core_attn']\n"
     "cfg.model.recompute_modules.append('mlp')", "tp2-nosp-dp4-mbs2-z1-rsel(attn+mlp)"),
    ("cfg.model.context_parallel_size = 2 if SEQUENCE > 100 else 1", WIDE),
    ("cfg.model.context_parallel_size = 2 if args.x else 2", WIDE),
    ("if args.x:\n    cfg.model.context_parallel_size = 4\ncfg.model.context_parallel_size = 2", WIDE),
    ("m = DistributedDataParallelConfig()\n"
     "cfg.ddp = m\n"
     "m.use_distributed_optimizer = False\n"
     "cfg.optimizer.use_distributed_optimizer = False", "tp2-nosp-dp4-mbs2-z0-rnone"),
    ("def f():\n    cfg.model.context_parallel_size = 2\nf()", WIDE),
    ("cfg.model.context_parallel_size, *rest = 2, 3, 4", WIDE),
    ("for n in range(2):\n    cfg.model.context_parallel_size = n + 1", WIDE),
    ("getattr(cfg, 'model').context_parallel_size = 2", WIDE),
    ("if args.x:\n    raise ValueError\ncfg.model.context_parallel_size = 2", WIDE),
    ("class A:\n    cfg.model.context_parallel_size = 2", WIDE),
    ("cfg = copy.deepcopy(cfg)\ncfg.model.context_parallel_size = 2", WIDE),
    ("if args.x:\n    cfg.model.context_parallel_size = 2\nelse:\n    cfg.model.context_parallel_size = 2", WIDE),
    ("cfg.train = my_train()\n"
     "cfg.train.micro_batch_size = 1\n"
     "cfg.train.global_batch_size = 8", "tp2-nosp-dp4-mbs1-z1-rnone"),
    ("cfg.model.tensor_model_parallel_size = cfg.model.tensor_model_parallel_size * 2", "tp4-nosp-dp2-mbs2-z1-rnone"),
    ("d = {'cp': 4}\nd['cp'] = 2\ncfg.model.context_parallel_size = d['cp']", WIDE),
    ("d = {'context_parallel_size': 2}\nfor k in d:\n    setattr(cfg.model, k, d[k])", WIDE),
    ("def f(c):\n    return c.model\nf(cfg).context_parallel_size = 2", WIDE),
    ("def f(c):\n    m = c.model\n    return m\nm = f(cfg)\nm.context_parallel_size = 2", WIDE),
    ("def f(c, n):\n"
     "    if n:\n"
     "        f(c, n - 1)\n"
     "    else:\n"
     "        c.model.context_parallel_size = 2\n"
     "f(cfg, 3)", WIDE),
    ("try:\n    pass\nfinally:\n    cfg.model.context_parallel_size = 2", WIDE),
    ("cfg.model.context_parallel_size = int('2')", WIDE),
    ("cfg.model.context_parallel_size = 4 / 2", WIDE),
    ("cfg.model.context_parallel_size = len('ab'.upper())", WIDE),
    ("def f(c, cp=SEQUENCE // 2048):\n    c.model.context_parallel_size = cp\nf(cfg)", WIDE),
    ("for n in (1, 2):\n    pass\ncfg.model.context_parallel_size = n", WIDE),
    ("for n in (1, 2):\n    pass\nelse:\n    cfg.model.context_parallel_size = 2", WIDE),
    ("for n in (2, 4):\n    if n == 4:\n        continue\n    cfg.model.context_parallel_size = n", WIDE),
    ("assert setattr(cfg.model, 'context_parallel_size', 2) is None", WIDE),
    ("for a, b in zip(('context_parallel_size',), (2,)):\n    setattr(cfg.model, a, b)", WIDE),
    ("m = cfg.model\ncfg.model = m\nm.context_parallel_size = 2", WIDE),
    ("def f():\n    cfg.model.context_parallel_size = n\nn = 2\nf()", WIDE),
    ("def update(c, **kw):\n"
     "    for k, v in kw.items():\n"
     "        setattr(c.model, k, v)\n"
     "update(cfg, context_parallel_size=2)", WIDE),
    ("base = 3\ncfg.model.context_parallel_size = base - 1", WIDE),
    ("match cfg:\n    case c:\n        c.model.context_parallel_size = 2", WIDE),
    ("m = cfg.model\ndel m\ncfg.model.context_parallel_size = 2", WIDE),
    ('setattr(cfg.model, f\'{"context"}_parallel_size\', 2)', WIDE),
    ("def f(m, n):\n    m.context_parallel_size = n\nf(*(cfg.model, 2))", WIDE),
    ("if hasattr(cfg.model, 'use_transformer_engine_op_fuser') and cfg.model.use_transformer_engine_op_fuser:\n"
     "    cfg.model.use_transformer_engine_op_fuser = False\n"
     "cfg.model.context_parallel_size = 2", WIDE),
    ("if args.x:\n    cfg.model.use_te_rng_tracker = True\ncfg.model.context_parallel_size = 2", WIDE),
]  # fmt: skip
# Statement -> option, line and reason of the one gap.
DOUBTS = [
    ("cfg.train.update(micro_batch_size=8)", "train", 16, "is changed by .update(...), which only a run can follow"),
    ("cfg.train.__dict__.update({'micro_batch_size': 8})",
     "train", 16, "is changed by .update(...), which only a run can follow"),
    ("setattr(cfg.model, name(), 2)", "model", 16, "setattr changes it when the module runs"),
    ("match args.size:\n"
     "    case 4096:\n"
     "        cfg.model.context_parallel_size = 2",
     "model.context_parallel_size", 18, "is set where `args.size` matches, which only a run can tell"),
    ("cfg.train.micro_batch_size *= 2",
     "train.micro_batch_size", 16, "`cfg.train.micro_batch_size * 2` is computed when the module runs"),
    ("del cfg.model.tensor_model_parallel_size", "model.tensor_model_parallel_size", 16, "is deleted"),
    ("for part in (cfg.model, cfg.train):\n"
     "    part.context_parallel_size = 2", "train.context_parallel_size", 17, "unknown: it may change the layout"),
    ("[part.update(x=8) for part in [cfg.model]]",
     "model", 16, "is changed by .update(...), which only a run can follow"),
    ("cfg = dataclasses.replace(cfg, model=other())", "model", 16, "`other` is none of"),
    ("f = lambda: setattr(cfg.model, 'context_parallel_size', 2)\nf()", "", 16, "may be changed by a lambda"),
    ("if args.x:\n"
     "    return cfg\n"
     "cfg.model.context_parallel_size = 2",
     "model.context_parallel_size", 18, "may be set on one way through a function and not on another"),
    ("if hasattr(cfg.model, 'use_transformer_engine_op_fuser') and cfg.model.use_transformer_engine_op_fuser:\n"
     "    cfg.model.context_parallel_size = 2",
     "model.context_parallel_size", 17, "is set where `hasattr(cfg.model, 'use_transformer_engine_op_fuser') and"),
    ("if hasattr(cfg.model, 'x') and cfg.model.use_transformer_engine_op_fuser:\n"
     "    cfg.model.use_transformer_engine_op_fuser = False",
     "model.use_transformer_engine_op_fuser", 17, "is set where `hasattr(cfg.model, 'x') and"),
    ("try:\n"
     "    cfg.model.context_parallel_size = 2\n"
     "except E:\n"
     "    pass", "model.context_parallel_size", 17, "is set where only a run can follow"),
    ("while more():\n"
     "    cfg.train.micro_batch_size = 4", "train.micro_batch_size", 17, "is set where only a run can follow"),
    ("for n in (2, 4, 8):\n"
     "    if args.x:\n"
     "        break\n"
     "    cfg.model.context_parallel_size = n",
     "model.context_parallel_size", 19, "is set where only a run can follow"),
    ("d = {'m': cfg.model}\n"
     "d['m'].context_parallel_size = 2", "model", 16, "is in a list or dict, by which it may be changed"),
    ("def f(c, cp=1):\n"
     "    c.model.context_parallel_size = cp\n"
     "f(cfg, **opts())", "", 18, "may be changed by a parameter of f"),
    ("f = functools.partial(setattr, cfg.model, 'context_parallel_size')\n"
     "f(2)", "model", 16, "functools.partial changes it and is in another file: give that file too"),
    ("global SEQUENCE\nSEQUENCE = 8", "", 16, "is changed through a name of another function"),
    ("m = cfg.model\n"
     "cfg.model = m2()\n"
     "m.context_parallel_size = 2", "model", 17, "`m2` is none of"),
    ("cfg.model.context_parallel_size = 2 if args.x else 1",
     "model.context_parallel_size", 16, "`2 if args.x else 1` is computed when the module runs"),
    ("args.x and setattr(cfg.model, 'context_parallel_size', 2)",
     "model.context_parallel_size", 16, "is one of several values, which only a run can tell"),
    ("other = base()\n"
     "other.model = cfg.model\n"
     "other.model.context_parallel_size = 2", "model", 17, "is one object with model"),
    ("cfg.model.register(hook)", "model", 16, "is changed by .register(...), which only a run can follow"),
    ("exec('cfg.model.context_parallel_size = 2')", "", 16, "may be changed by exec(...)"),
    ("vars(cfg.model)['context_parallel_size'] = 2",
     "model", 16, "vars changes it and is in another file: give that file too"),
    ("list(map(lambda n: setattr(cfg.model, n, 2), ['context_parallel_size']))",
     "", 16, "may be changed by a lambda"),
    ("@wrap\ndef f(c):\n    c.model.context_parallel_size = 2\nf(cfg)", "", 19, "may be changed by f"),
    ("def f(c):\n    c.model.context_parallel_size = 2\n    yield\nlist(f(cfg))", "", 19, "may be changed by f"),
    ("if args.x:\n"
     "    cfg = base()\n"
     "    cfg.model.context_parallel_size = 2",
     "model.context_parallel_size", 18, "is set where `args.x` holds, which only a run can tell"),
    ("if args.x:\n"
     "    cfg.model.frobnicate_experts = 2", "model.frobnicate_experts", 17, "unknown: it may change the layout"),
    ("cfg.train = TrainingConfig(4)", "train", 16, "is `TrainingConfig(4)`, which only a run can tell"),
    ("cfg.train = my_train()", "train", 16, "`my_train` is none of TrainingConfig"),
    ("cfg.model.context_parallel_size = cp.SIZE",
     "model.context_parallel_size", 16, "`cp.SIZE` is computed when the module runs"),
    ("cfg.train.micro_batch_size = scale(cfg.train.micro_batch_size)",
     "train.micro_batch_size", 16, "`scale(cfg.train.micro_batch_size)` is computed when the module runs"),
    ("m = cfg.get('model')\n"
     "m.context_parallel_size = 2", "", 16, "is changed by .get(...), which only a run can follow"),
    ("with opened(cfg) as c:\n"
     "    c.model.context_parallel_size = 2", "", 16, "opened changes it and is in another file: give that file too"),
    ("other = base()\n"
     "other.model.context_parallel_size = 2\n"
     "return cfg if args.x else other",
     "model.context_parallel_size", 18, "is one of several values, which only a run can tell"),
    ("d = {'cp': 4}\n"
     "if args.x:\n"
     "    d['cp'] = 2\n"
     "cfg.model.context_parallel_size = d['cp']",
     "model.context_parallel_size", 19, "`d['cp']` is computed when the module runs"),
    ("d = ['core_attn']\n"
     "if args.x:\n"
     "    d.append('mlp')\n"
     "cfg.model.recompute_granularity='selective'\n"
     "cfg.model.recompute_modules = d", "model.recompute_modules", 20, "`d` is computed when the module runs"),
    ("cfg |= {'a': 1}", "", 14, "the config that mine returns is not clear"),
    ("def f(c):\n    f(c)\nf(cfg)", "", 17, "may be changed by f"),
    ("while True:\n"
     "    cfg.model.context_parallel_size = 2\n"
     "    break", "model.context_parallel_size", 17, "is set where only a run can follow"),
    ("with suppress(KeyError):\n"
     "    cfg.model.context_parallel_size = 2",
     "model.context_parallel_size", 17, "is set where only a run can follow"),
    ("cfg.model.context_parallel_size = 4 // 0",
     "model.context_parallel_size", 16, "`4 // 0` is computed when the module runs"),
    ("cfg.model.context_parallel_size = 10 ** 10 ** 10",
     "model.context_parallel_size", 16, "`10 ** 10 ** 10` is computed when the module runs"),
    ("for n in range(10 ** 9):\n"
     "    cfg.model.context_parallel_size = n",
     "model.context_parallel_size", 17, "is set where only a run can follow"),
    ("if 1 < SEQUENCE < 5000:\n"
     "    cfg.model.context_parallel_size = 2",
     "model.context_parallel_size", 17, "is set where `1 < SEQUENCE < 5000` holds, which only a run can tell"),
    ("import os\n"
     "if os.environ.get('A'):\n"
     "    cfg.model.context_parallel_size = 2",
     "model.context_parallel_size", 18, "is set where `os.environ.get('A')` holds, which only a run can tell"),
    ("n = 1\n"
     "def f():\n"
     "    nonlocal n\n"
     "    n = 2\n"
     "f()\n"
     "cfg.model.context_parallel_size = n", "", 18, "is changed through a name of another function"),
    ("hooks = [lambda: setattr(cfg.model, 'context_parallel_size', 2)]", "", 16, "may be changed by a lambda"),
    ("def f():\n"
     "    cfg.model.context_parallel_size = 2\n"
     "call(f)", "", 18, "call changes it and is in another file: give that file too"),
    ("other = base()\n"
     "other.model.context_parallel_size = 2\n"
     "cfg.model = other.model", "model", 18, "is one object with model"),
    ("c = copy.copy(cfg)\n"
     "c.model.context_parallel_size = 2", "", 16, "shares its blocks with a copy, by which they may be changed"),
    ("yield cfg", "", 16, "is in a list or dict, by which it may be changed"),
    ("await tune(cfg)", "", 16, "tune changes it and is in another file: give that file too"),
    ("s = {cfg.model}", "model", 16, "is in a list or dict, by which it may be changed"),
]  # fmt: skip


def recipe(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{HEAD}\n\ndef mine():\n    cfg = base()\n{lines}    return cfg\n"


@pytest.mark.parametrize(("body", "layout"), KNOWN)
def test_what_is_followed_has_its_value(tmp_path: Path, body: str, layout: str) -> None:
    found = imported(tmp_path, recipe(body), arguments=("mine",))
    assert (str(found.layout), found.gaps) == (layout, ())


@pytest.mark.parametrize(("body", "option", "line", "text"), DOUBTS)
def test_what_is_not_followed_is_a_gap(tmp_path: Path, body: str, option: str, line: int, text: str) -> None:
    found = imported(tmp_path, recipe(body), arguments=("mine",))
    assert [(gap.field, gap.line) for gap in found.gaps] == [(option, line)]
    assert found.gaps[0].message.startswith(text)
