"""`import` on scripts of pretrain_bert.py and pretrain_t5.py: the models of Megatron, not those of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.planner.importing import Imported, import_config
from meshwright.planner.request.resolve import resolve

from meshwright.errors import InputError

START = "torchrun --nproc_per_node 8 --nnodes 1"
SIZES = "--hidden-size 768 --num-attention-heads 12 --ffn-hidden-size 3072 --max-position-embeddings 512"
T5 = f"""{START} pretrain_t5.py --encoder-num-layers 12 --decoder-num-layers 12 {SIZES} --encoder-seq-length 512 \\
  --decoder-seq-length 128 --micro-batch-size 4 --global-batch-size 64 --bf16 --vocab-extra-ids 100
"""
BERT = f"""{START} pretrain_bert.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 \\
  --max-position-embeddings 512 --micro-batch-size 4 --global-batch-size 32 --fp16 --tensor-model-parallel-size 2
"""


def imported(folder: Path, text: str) -> Imported:
    path = folder / "run.sh"
    path.write_text(text, encoding="utf-8")
    return import_config("megatron-args", [path], {"gpu": "h100-sxm-80gb"})


def model_of(found: Imported) -> ModelSpec:
    return resolve(found.request).model


def block(h: int, f: int) -> tuple[int, int]:
    """Elements of an attention and of a feed-forward block, with biases."""
    return 4 * h * h + 4 * h, 2 * h * f + f + h


def test_t5_has_the_parameters_of_megatron(tmp_path: Path) -> None:
    """core/models/T5: LayerNorms with biases, a table of 30,522 + 2 + 100 tokens in multiples of 128, one of positions
    for both stacks, a bias of the tied head."""
    found = imported(tmp_path, T5)
    h, vocab = 768, 30720
    attention, dense = block(h, 3072)
    encoder, decoder = attention + dense + 4 * h, 2 * attention + dense + 6 * h
    assert total_parameters(model_of(found)) == vocab * h + 512 * h + 12 * (encoder + decoder) + 4 * h + vocab
    workload = resolve(found.request).workload
    assert (workload.source_len, workload.seq_len) == (512, 128)
    assert str(found.layout) == "dp8-mbs4-z0-rnone"


@pytest.mark.parametrize(
    ("file", "words"), [("bert-large-cased-vocab.txt", 29184), ("bert-large-uncased-vocab.txt", 30720)]
)
def test_the_table_is_that_of_the_vocabulary_file(tmp_path: Path, file: str, words: int) -> None:
    """28,996 or 30,522 words and 2 more in multiples of 128 x tp 2, whatever the tokenizer's type is."""
    assert model_of(imported(tmp_path, f"{BERT.rstrip()} --vocab-file data/{file}")).vocab == words


def test_bert_has_the_parameters_of_megatron(tmp_path: Path) -> None:
    """core/models/bert: types of tokens, a norm behind the stack and one in its head, a pooled head of two classes."""
    h, vocab = 1024, 30720  # 30,524 in multiples of 128 x tp 2
    attention, dense = block(h, 4096)
    body = vocab * h + 512 * h + 24 * (attention + dense + 4 * h) + 2 * h
    head, pooled = h * h + h + 2 * h + vocab, h * h + h + 2 * (h + 1)
    found = imported(tmp_path, BERT)
    assert total_parameters(model_of(found)) == body + 2 * h + head + pooled
    assert model_of(found).bidirectional
    without = imported(tmp_path, BERT.replace("--fp16", "--fp16 --bert-no-binary-head"))
    assert total_parameters(model_of(without)) == body + head


TASK = BERT.replace("pretrain_bert.py", "../../tasks/main.py --task {task} --epochs 3 --finetune")


@pytest.mark.parametrize(("task", "classes", "sequences"), [("QQP", 2, 1), ("MNLI", 3, 1), ("RACE", 1, 4)])
def test_tasks_have_a_head_of_classes_alone(tmp_path: Path, task: str, classes: int, sequences: int) -> None:
    """megatron/model/classification.py and multiple_choice.py: types of tokens, a pooler, a linear layer; a batch of
    RACE has four sequences of each sample."""
    h, vocab = 1024, 30720
    attention, dense = block(h, 4096)
    body = vocab * h + 512 * h + 2 * h + 24 * (attention + dense + 4 * h) + 2 * h
    found = imported(tmp_path, TASK.format(task=task))
    assert not found.gaps
    assert total_parameters(model_of(found)) == body + h * h + h + classes * (h + 1)
    assert (found.layout.micro_batch, found.request.workload.global_batch) == (4 * sequences, 32 * sequences)
    assert found.price().best.step_s > 0


@pytest.mark.parametrize("task", ["RETRIEVER-EVAL", ""])
def test_other_tasks_are_gaps(tmp_path: Path, task: str) -> None:
    (gap,) = imported(tmp_path, TASK.format(task=task).replace("--task  ", "")).gaps
    assert gap.field == "--task"
    assert "trains nothing" in gap.message


ONE_RANK = BERT.replace("--tensor-model-parallel-size 2", "--retriever-score-scaling")
ICT = ONE_RANK.replace("pretrain_bert.py", "pretrain_ict.py")
RETRIEVER = ONE_RANK.replace("pretrain_bert.py", "tasks/main.py --task RET-FINETUNE-NQ")


@pytest.mark.parametrize(("text", "added", "texts", "encoders", "width", "seq_len"), [
    (ICT, "", 1, 2, 0, 512),
    (ICT, "--biencoder-shared-query-context-model --biencoder-projection-dim 128", 1, 1, 128, 512),
    (RETRIEVER, "", 1, 2, 0, 256), (RETRIEVER, "--train-hard-neg 2", 1, 2, 0, 256),
    (RETRIEVER, "--train-with-neg --train-hard-neg 2 --retriever-seq-length 128 --faiss-use-gpu", 3, 2, 0, 128),
])  # fmt: skip
def test_retrieval_has_an_encoder_for_queries_and_one_for_texts(
    tmp_path: Path, text: str, added: str, texts: int, encoders: int, width: int, seq_len: int
) -> None:
    """megatron/model/biencoder_model.py: BERTs of two types of tokens without a pooler, with a product of the vectors
    where it has a width. Texts that do not answer are in the batch with --train-with-neg alone."""
    h, vocab = 1024, 30592
    attention, dense = block(h, 4096)
    body = vocab * h + 512 * h + 2 * h + 24 * (attention + dense + 4 * h) + 2 * h
    found = imported(tmp_path, text.replace("--fp16", f"--fp16 {added}"))
    assert not found.gaps
    assert total_parameters(model_of(found)) == encoders * (body + width * (h + 1))
    batch = found.layout.micro_batch, found.request.workload.global_batch
    assert (*batch, found.request.workload.seq_len) == (4 * (1 + texts), 32 * (1 + texts), seq_len)
    assert found.request.fix["micro_batch"] == batch[0]
    assert found.price().best.step_s > 0
    plain = imported(tmp_path, text.replace("--retriever-score-scaling", ""))
    scales = [model_of(each).retrieval.scales_scores for each in (found, plain)]  # type: ignore[union-attr]
    assert scales == [True, False]


def test_layers_of_the_decoder_and_a_head_of_its_own(tmp_path: Path) -> None:
    both = imported(tmp_path, T5.replace("--encoder-num-layers 12 --decoder-num-layers 12", "--num-layers 12"))
    assert model_of(both).num_layers == 24
    untied = model_of(imported(tmp_path, T5.replace("--bf16", "--bf16 --untie-embeddings-and-output-weights")))
    assert (untied.tied_embeddings, untied.head_bias) == (False, False)
    relative = model_of(imported(tmp_path, T5.replace("--bf16", "--bf16 --position-embedding-type relative")))
    assert (relative.learned_positions, relative.rope_theta) == (0, None)
    assert sum(kind.attention.bias_parameters for kind in relative.kinds if kind.attention) == 2 * 32 * 12


def test_what_is_compared_is_what_megatron_trains(tmp_path: Path) -> None:
    for text in (T5, BERT):
        found = imported(tmp_path, text)
        assert found.price().candidates[0].step_s > 0
        assert found.request.fix["cp"] == 1
    assert imported(tmp_path, T5).request.fix["pp"] == 1


GAPS = [
    (T5, "--bf16", "--bf16 --pipeline-model-parallel-size 2", "--pipeline-model-parallel-size"),
    (T5, "--decoder-num-layers 12", "--decoder-num-layers 6", "--decoder-num-layers"),
    (T5, "--bf16", "--bf16 --group-query-attention --num-query-groups 4", "--num-query-groups"),
    (T5, "--bf16", "--bf16 --num-experts 8", "--num-experts"),
    (BERT, "--fp16", "--fp16 --context-parallel-size 2", "--context-parallel-size"),
    (BERT, "--fp16", "--fp16 --position-embedding-type rope", "--position-embedding-type"),
    (BERT, "--fp16", "--fp16 --decoder-seq-length 128", "--decoder-seq-length"),
    (BERT, "pretrain_bert.py", "pretrain_retro.py", ""),
]


@pytest.mark.parametrize(("text", "old", "new", "field"), GAPS, ids=[new for _, _, new, _ in GAPS])
def test_what_no_plan_holds_is_a_gap(tmp_path: Path, text: str, old: str, new: str, field: str) -> None:
    assert [gap.field for gap in imported(tmp_path, text.replace(old, new)).gaps] == [field]


WRONG = [
    (T5, "--decoder-seq-length 128", "", "--decoder-seq-length: pretrain_t5.py needs it"),
    (T5, "--decoder-seq-length 128", "--decoder-seq-length 1024", "1024 is longer than the 512 positions"),
    (T5, "--encoder-seq-length 512", "--encoder-seq-length 512 --seq-length 512", "cannot be given together with"),
    (BERT, "--fp16", "--fp16 --pipeline-model-parallel-size 16", "24 layers do not split over pp 16"),
    (BERT, "pretrain_bert.py", "pretrain_ict.py", "--tensor-model-parallel-size: biencoder_model.py asserts 1"),
]


@pytest.mark.parametrize(("text", "old", "new", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_what_megatron_refuses_is_refused(tmp_path: Path, text: str, old: str, new: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        imported(tmp_path, text.replace(old, new))
    assert message in str(caught.value)
