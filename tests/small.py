"""Small real models and tokenizers, made on the spot: the stand-ins for checkpoints in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
SPECIAL = (PAD, BOS, EOS)
VOCABULARY = len(SPECIAL) + 256  # a token for each byte
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def small_llama(seed: int = 0, **overrides: object) -> LlamaForCausalLM:
    """A random Llama of two layers with grouped heads; its embedding has a few rows more than `small_tokenizer` has tokens."""
    settings: dict[str, object] = {
        "vocab_size": VOCABULARY + 5,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,  # attention that differs from head to head, not a uniform one
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**settings | overrides)).eval()


def small_tokenizer(bos: Literal["added", "known", "none"] = "added", chat_template: bool = True) -> PreTrainedTokenizerBase:
    """A token for each byte. It puts `<s>` in front by itself, or only knows it, or has no such token."""
    special = SPECIAL if bos != "none" else (PAD, EOS)
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if bos == "added":
        pair = f"{BOS} $A {BOS} $B"
        tokenizer.post_processor = processors.TemplateProcessing(f"{BOS} $A", pair, special_tokens=[(BOS, tokens.index(BOS))])
    names = {"pad_token": PAD, "eos_token": EOS} | ({"bos_token": BOS} if bos != "none" else {})
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    if chat_template:
        fast.chat_template = CHAT_TEMPLATE if bos != "none" else CHAT_TEMPLATE.removeprefix("{{ bos_token }}")
    return fast


def save(folder: Path, model: PreTrainedModel | None = None, tokenizer: PreTrainedTokenizerBase | None = None) -> Path:
    """A checkpoint folder with the parts that are given; a string of its path is a model's name."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in (model, tokenizer):
        if part is not None:
            part.save_pretrained(folder)
    return folder
