"""Writes a model of 0.5 M parameters that vLLM serves: configuration, drawn weights, a tokenizer of single bytes. Run
it by the Python that has vLLM:

    python tiny_model.py FOLDER
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCAB = 128, 256, 2, 4, 2, 320
_HEAD = HIDDEN // HEADS
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": _HEAD,
    "vocab_size": VOCAB, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_BLOCK = {
    "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KV_HEADS * _HEAD, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * _HEAD, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
    "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
}  # fmt: skip


def shapes() -> dict[str, tuple[int, ...]]:
    """Name of a weight -> its shape."""
    blocks = {f"model.layers.{layer}.{name}.weight": shape for layer in range(LAYERS) for name, shape in _BLOCK.items()}
    return {"model.embed_tokens.weight": (VOCAB, HIDDEN), **blocks, "model.norm.weight": (HIDDEN,),
            "lm_head.weight": (VOCAB, HIDDEN)}  # fmt: skip


def write(folder: Path) -> None:
    """All files of the model."""
    torch = importlib.import_module("torch")
    safetensors = importlib.import_module("safetensors.torch")
    tokenizers = importlib.import_module("tokenizers")
    folder.mkdir(parents=True, exist_ok=True)
    drawn = torch.Generator().manual_seed(0)
    weights = {name: (torch.ones(shape) if len(shape) == 1 else 0.02 * torch.randn(shape, generator=drawn)).bfloat16()
               for name, shape in shapes().items()}  # fmt: skip
    safetensors.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {letter: number + 3 for number, letter in enumerate(letters)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=words, merges=[], unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "model_max_length": 2048}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special}))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
