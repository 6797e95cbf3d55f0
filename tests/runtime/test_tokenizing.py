"""Shards of tokens from text: those of transformers, document by document, and what `launch` reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from meshwright.cli.main import main
from meshwright.planner import api
from meshwright.planner.request.load import request_from_dict
from meshwright.runtime.data import open_source
from meshwright.runtime.tokenizing import Tokenizer, write_shards

from meshwright.errors import InputError

TEXTS = ["the cat sat on the mat", "", "a dog\nran äöü away", "the end </s> of it"]
MODEL = {"hidden": 64, "layers": 2, "heads": 4, "ffn_hidden": 128, "vocab": 300, "max_positions": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer of 272 tokens in `hf`, documents in `text.jsonl`, a plan for a model of 300 rows."""
    tokenizers = pytest.importorskip("tokenizers")
    out = tmp_path_factory.mktemp("text")
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(TEXTS, vocab_size=271, special_tokens=[], show_progress=False)
    made.add_special_tokens(["</s>"])
    (out / "hf").mkdir()
    made.save(str(out / "hf" / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": {"content": "</s>", "__type": "AddedToken"}}
    (out / "hf" / "tokenizer_config.json").write_text(json.dumps(config))
    (out / "text.jsonl").write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS))
    (out / "plan.json").write_text(planned(MODEL))
    return out


def planned(model: dict[str, int]) -> str:
    return api.plan(request_from_dict({"model": model, "gpu": "h100-sxm-80gb", "gpus": 1, "target": "meshwright",
                                       "workload": {"seq_len": 4, "global_batch": 2}})).to_json()  # fmt: skip


def written(folder: Path) -> list[int]:
    return [int(token) for path in sorted(folder.glob("*.npy")) for token in np.load(path)]


@pytest.mark.filterwarnings("ignore")
def test_the_tokens_are_those_of_transformers(folder: Path, tmp_path: Path) -> None:
    """Whatever the size of a shard; a file that is no .jsonl is one document."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder / "hf")
    (tmp_path / "more.txt").write_text("the\n\ndog\n")
    wanted = []
    for text in [*filter(None, TEXTS), "the\n\ndog\n"]:
        wanted += [*theirs(text, add_special_tokens=False)["input_ids"], theirs.eos_token_id]
    by = Tokenizer(folder / "hf")
    for shard_tokens in (1, 7, 1000):
        done = write_shards(by, [folder / "text.jsonl", tmp_path / "more.txt"], tmp_path / str(shard_tokens),
                            end_token=by.end_token(), field="text", shard_tokens=shard_tokens)  # fmt: skip
        assert written(tmp_path / str(shard_tokens)) == wanted
        assert (done.num_documents, done.num_tokens, done.dtype) == (4, len(wanted), "uint16")
        assert len(done.files) == -(-len(wanted) // shard_tokens)
        lengths = np.load(tmp_path / str(shard_tokens) / "documents.npz")["lengths"]
        assert [wanted[end] for end in np.cumsum(lengths + 1) - 1] == [theirs.eos_token_id] * 4
    tokens = open_source(str(tmp_path / "7"), by.num_tokens, 4, 2, seed=0).batch(0)
    assert tokens.flatten().tolist() == [*wanted[:5], *wanted[4:9]]


def test_the_command_says_how_to_train(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["launch", "tokens", str(folder / "text.jsonl"), "--tokenizer", str(folder / "hf"), "-d"]
    assert main([*words, str(tmp_path / "out"), "--plan", str(folder / "plan.json")]) == 0
    shown = capsys.readouterr()
    number = len(written(tmp_path / "out"))
    assert f"{number} tokens of 3 documents, 1 x npy (uint16)" in shown.out
    end = Tokenizer(folder / "hf").end_token()
    assert f"--data {tmp_path / 'out'} --end-token {end}" in shown.err
    plan = ["launch", str(folder / "plan.json"), "--dry-run", "--end-token", str(end), "--data", str(tmp_path / "out")]
    assert main(plan) == 0
    capsys.readouterr()
    assert main([*words, str(tmp_path / "json"), "--json", "--shard-tokens", "10"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["num_tokens"], document["end_token"]) == ("tokens", number, end)
    assert len(document["files"]) == -(-number // 10)


def refused(*words: object) -> int:
    return main(["launch", "tokens", *map(str, words)])


def test_a_tokenizer_larger_than_the_vocabulary(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by = Tokenizer(folder / "hf")
    small = tmp_path / "small.json"
    small.write_text(planned({**MODEL, "vocab": by.num_tokens - 7}))
    out = tmp_path / "out"
    words = (folder / "text.jsonl", "--tokenizer", folder / "hf", "-d", out)
    assert refused(*words, "--plan", small) == 2
    said = capsys.readouterr().err
    assert f"{by.num_tokens} tokens, the plan's model has {by.num_tokens - 7} rows: 7 too many" in said
    assert not out.exists()
    small.write_text(planned({**MODEL, "vocab": by.num_tokens}))
    assert refused(*words, "--plan", small) == 0


def test_all_lines_that_are_no_documents_are_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "bad.jsonl", tmp_path / "out"
    path.write_text('{"text": "good"}\n{"text": 3}\n\n[1]\n{"body": "x"}\n{"text"\n' + "no\n" * 20)
    assert refused(path, "--tokenizer", folder / "hf", "-d", out) == 2
    said = capsys.readouterr().err
    for words in ("line 2: no text `text`", "line 4: no text `text`", "line 5: no text", "line 6: no JSON",
                  "and 12 more"):  # fmt: skip
        assert words in said
    assert not out.exists()
    assert not list(tmp_path.glob(".partial*"))
    path.write_bytes(b"\xff\xfe")
    assert refused(path, "--tokenizer", folder / "hf", "-d", out) == 2
    assert "byte 0 is not UTF-8" in capsys.readouterr().err
    path.write_text("\n")
    assert refused(path, "--tokenizer", folder / "hf", "-d", out) == 2
    assert "no text" in capsys.readouterr().err
    assert refused(tmp_path / "none.txt", "--tokenizer", folder / "hf", "-d", out) == 2
    assert "No such file" in capsys.readouterr().err


def test_folders_without_a_tokenizer(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"tokenizer\.json: no such file"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(InputError, match="no tokenizer"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((folder / "hf" / "tokenizer.json").read_bytes())
    with pytest.raises(InputError, match="no `eos_token`") as caught:
        Tokenizer(tmp_path).end_token()
    assert "--end-token" in caught.value.hint
    words = (folder / "text.jsonl", "--tokenizer", tmp_path, "-d", tmp_path / "out")
    assert refused(*words, "--end-token", 999) == 2
    assert "the tokenizer has the tokens 0 to" in capsys.readouterr().err
    assert refused(*words, "--end-token", 5, "--shard-tokens", "0") == 2
    assert refused(*words, "--end-token", 5) == 0
    assert refused(*words, "--end-token", 5) == 2
    assert "is there already" in capsys.readouterr().err
