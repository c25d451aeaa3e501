"""Small models of the transformers library with random weights, saved into folders, with a tokenizer of whole words."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

# Looked for, not imported: each worker imports this module, and one of them needs the library, which takes a second.
for _name in ("tokenizers", "transformers"):
    if find_spec(_name) is None:
        pytest.skip(f"the extra fedpeer[hf] is missing: {_name}", allow_module_level=True)

WORDS = [
    *("good", "fine", "bad", "poor", "the", "film", "was", "a"),
    *("plot", "and", "very", "dull", "bright", "music"),
    "scene",
]
#: Texts of these words, and the opinion of each.
TEXTS = {
    **dict.fromkeys(("good film", "fine music", "bright plot", "film was good"), "yes"),
    **dict.fromkeys(("bad film", "poor plot", "dull music", "dull film"), "no"),
}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
#: Tokens that the models know; the tokenizer has fewer.
KNOWN = len(SPECIAL) + len(WORDS) + 3

_ALIKE = {"vocab_size": KNOWN, "max_position_embeddings": 24, "pad_token_id": 0}
_WIDE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def _named(kind: str, config: Any) -> nn.Module:
    import transformers

    model: nn.Module = getattr(transformers, kind)(config)
    return model


def _model(name: str) -> nn.Module:
    import transformers as tf

    distil = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
    gpt2 = {"vocab_size": KNOWN, "n_positions": 24, "n_embd": 16, "n_layer": 2, "n_head": 2}
    ends = {"bos_token_id": 2, "eos_token_id": 3}
    made: Mapping[str, Any] = {
        "bert": lambda: _named("BertModel", tf.BertConfig(**_ALIKE, **_WIDE)),
        "bert-masked": lambda: _named("BertForMaskedLM", tf.BertConfig(**_ALIKE, **_WIDE)),
        "roberta": lambda: _named("RobertaForSequenceClassification", tf.RobertaConfig(**_ALIKE, **_WIDE)),
        "distilbert": lambda: _named("DistilBertForSequenceClassification", tf.DistilBertConfig(**_ALIKE, **distil)),
        "gpt2": lambda: _named("GPT2LMHeadModel", tf.GPT2Config(**gpt2, **ends)),
        "llama": lambda: _named(
            "LlamaForCausalLM", tf.LlamaConfig(**_ALIKE, **_WIDE, **ends, num_key_value_heads=1, rope_theta=1e4)
        ),
    }
    model: nn.Module = made[name]()
    return model


def saved_model(name: str, folder: Path) -> Path:
    """Save a model with its tokenizer into a folder of its name, and return it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model: Any = _model(name)
    model.save_pretrained(folder / name)
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*SPECIAL, *WORDS])}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    if name in ("bert", "bert-masked", "roberta", "distilbert"):
        words.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    special = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "eos_token": "[SEP]"}
    padded = {} if name == "gpt2" else {"pad_token": "[PAD]"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special, **padded).save_pretrained(folder / name)
    return folder / name
