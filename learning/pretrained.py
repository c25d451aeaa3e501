"""Pretrained text models of Hugging Face's format as networks: loaded from a folder, whole or with adapters.

Only config.json and safetensors files are read; no code of the folder is run, and nothing is downloaded. The classes of
the models are those of the transformers library, which is imported when a model is loaded.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedpeer.algorithms.losses import Task
from fedpeer.config.pretrained import PretrainedNetwork
from fedpeer.learning.adapter_files import AdapterFile, put_adapter, read_adapter, write_adapter
from fedpeer.learning.assembly import DataShape
from fedpeer.learning.model_folder import folder_digest
from fedpeer.learning.program import first_line
from fedpeer.networks.lora import ADAPTABLE, TiedAdapted, adapt, freeze, merged
from fedpeer.networks.registry import NetworkError

#: Ends of the names of the layers that get adapters by default, in the models of the library: an attention's queries
#: and values (LoRA 2022, section 4.2), or one layer with them and the keys.
_ATTENTION = (
    *("query", "value", "q_proj", "v_proj", "q_lin", "v_lin", "query_proj", "value_proj"),
    *("c_attn", "query_key_value", "qkv_proj", "Wqkv", "attn_qkv"),
)
#: Files of a tokenizer.
_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "chat_template.jinja"),
)


class PretrainedModel(nn.Module):
    """A model of the transformers library from token numbers (B, T) to logits, (B, classes) or (B, T, vocabulary).

    model     the library's model
    padding   token that fills up short texts, which attention leaves out; None: there is none
    source    folder that it was loaded from
    turned    whether its linear layers have the transposed weights of the folder (GPT-2)
    """

    def __init__(self, model: nn.Module, padding: int | None, source: str, *, turned: bool) -> None:
        super().__init__()
        self.model, self.padding, self.source, self.turned = model, padding, source, turned

    def forward(self, x: Tensor) -> Tensor:
        """Map token numbers, (B, T) int64, to logits."""
        logits: Tensor = self.model(input_ids=x, attention_mask=self._attended(x)).logits
        return logits

    def _attended(self, x: Tensor) -> Tensor:
        """Return which tokens attention sees, (B, T): always the first one, so that every text has at least one."""
        there = torch.ones_like(x) if self.padding is None else (x != self.padding).long()
        return torch.cat([torch.ones_like(x[:, :1]), there[:, 1:]], dim=1)


def build_pretrained(chosen: PretrainedNetwork, shape: DataShape, outputs: int) -> PretrainedModel:
    """Load a model; if it gets adapters, freeze it and put them around its layers.

    The caller seeds torch's generator: a new classifier and new adapters begin at random.

    Args:
        outputs: number of classes, or of numbers to predict; for next tokens the folder's model determines it.

    Raises:
        NetworkError: the folder cannot be read or does not fit the data.
    """
    folder = Path(chosen.path)
    _check_folder(folder, chosen, shape)
    module, new = _loaded(folder, shape, outputs)
    if shape.task == "next-token":
        _check_causal(module, folder)
    if chosen.adapts:
        adapter = None
        if chosen.adapter:
            adapter = read_adapter(Path(chosen.adapter))
            _check_digest(chosen.adapter, chosen.adapter_digest, "adapter")
        _adapted(module, new, chosen, adapter)
        if adapter is not None:
            put_adapter(module.model, adapter)
    return module


def _check_folder(folder: Path, chosen: PretrainedNetwork, shape: DataShape) -> None:
    _check_digest(chosen.path, chosen.digest, "model")
    if shape.input_kind != "tokens":
        raise NetworkError(
            f"network hf: it takes text, and {shape.name} has {shape.input_kind}; name data with text, such as "
            f"csv:FILE,label=NAME,text=NAME,tokenizer={folder}"
        )


def _check_digest(path: str, digest: str, what: str) -> None:
    """Check that a folder can be read and has this digest; "": any digest."""
    if folder_digest(Path(path), what) != digest and digest:
        raise NetworkError(
            f"network hf: the {what} in {path} is not the one that this network was trained with; restore it, or train "
            "again"
        )


def _loaded(folder: Path, shape: DataShape, outputs: int) -> tuple[PretrainedModel, frozenset[str]]:
    """Return the model, and the names of its parameters that the folder does not have: they begin at random."""
    try:
        import transformers
    except ImportError:
        raise NetworkError("network hf needs the transformers library; run pip install fedpeer[hf]") from None
    local = {"local_files_only": True, "trust_remote_code": False}
    with _quiet(transformers):
        try:
            config: Any = transformers.AutoConfig.from_pretrained(folder, **local)
            padding = _fitted(config, folder, shape, outputs)
            kinds = {
                "next-token": transformers.AutoModelForCausalLM,
                "classification": transformers.AutoModelForSequenceClassification,
                "multi-label": transformers.AutoModelForSequenceClassification,
                "regression": transformers.AutoModelForSequenceClassification,
            }
            kind: Any = kinds[shape.task]
            model: nn.Module
            model, found = kind.from_pretrained(
                folder,
                output_loading_info=True,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # a classifier for other classes begins anew
                **local,
            )
        except NetworkError:
            raise
        except Exception as problem:  # whatever the library raises for a folder that it does not know
            raise NetworkError(
                f"network hf: {folder} cannot be loaded: {type(problem).__name__}: {first_line(problem)}"
            ) from None
    new = frozenset(
        f"model.{name}" for name in (*found["missing_keys"], *(each[0] for each in found["mismatched_keys"]))
    )
    _check_length(model, config, folder, shape)
    turned = _as_linear(model, transformers)
    return PretrainedModel(model.eval(), padding, str(folder), turned=turned), new


@torch.no_grad()
def _check_causal(module: PretrainedModel, folder: Path) -> None:
    """Check that an answer does not depend on the tokens after it, as those of BERT do: it would copy the next one."""
    texts = torch.tensor([[1, 2], [1, 3]])
    first, second = module(texts)[:, 0]
    if not torch.allclose(first, second, rtol=1e-4, atol=1e-5):
        raise NetworkError(
            f"network hf: the model in {folder} sees the tokens after the one that it predicts, so it would copy them; "
            "take a causal language model, such as GPT-2 or Llama, or give the data a label"
        )


def _fitted(config: Any, folder: Path, shape: DataShape, outputs: int) -> int | None:
    """Complete a model's settings by those that the data need, and return its padding token."""
    if not hasattr(config, "vocab_size"):
        raise NetworkError(
            f"network hf: the model in {folder} ({config.model_type}) does not read text; take a text model, such as "
            "BERT or Llama"
        )
    if shape.vocabulary > config.vocab_size:
        raise NetworkError(
            f"network hf: the model in {folder} knows {config.vocab_size} tokens, and {shape.name} has "
            f"{shape.vocabulary}; take the model's own tokenizer: tokenizer={folder}"
        )
    config.use_cache = False
    # The tokenizer's padding token fills up short texts; the model's settings may lack it, or have another one. Then
    # attention would see the filling, and a decoder would classify by the last of it.
    if shape.padding is not None and shape.padding < config.vocab_size:
        config.pad_token_id = shape.padding
    if config.pad_token_id is None:
        config.pad_token_id = config.eos_token_id if isinstance(config.eos_token_id, int) else None
    if shape.task != "next-token":
        config.num_labels = outputs
    padding: int | None = config.pad_token_id
    return padding


def _check_length(model: nn.Module, config: Any, folder: Path, shape: DataShape) -> None:
    """Check that the model has positions for all tokens of an example."""
    longest = getattr(config, "max_position_embeddings", None) or -1  # -1: a text may have any length
    for name, layer in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
            longest -= layer.padding_idx + 1  # RoBERTa and related models count from the padding token on
    if 0 < longest < shape.input_shape[0]:
        raise NetworkError(
            f"network hf: the model in {folder} reads at most {longest} tokens, and an example of {shape.name} has "
            f"{shape.input_shape[0]}; write a smaller length into the data's settings, such as length={longest}"
        )


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Silence the library: what matters is reported here, in one sentence."""
    words = transformers.utils.logging
    level, shown = words.get_verbosity(), words.is_progress_bar_enabled()
    words.set_verbosity(logging.CRITICAL)
    words.disable_progress_bar()
    try:
        yield
    finally:
        words.set_verbosity(level)
        if shown:
            words.enable_progress_bar()


def _as_linear(model: nn.Module, transformers: Any) -> bool:
    """Put linear layers in the place of GPT-2's `Conv1D`, whose weight is transposed; return whether there were any."""
    conv = transformers.pytorch_utils.Conv1D
    found = [each for each in model.named_modules() if isinstance(each[1], conv)]
    for name, layer in found:
        weight = cast(Tensor, layer.weight)
        made = nn.Linear(weight.shape[0], weight.shape[1], device="meta")
        made.weight, made.bias = nn.Parameter(weight.detach().T.contiguous()), cast(nn.Parameter, layer.bias)
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, made)
    return bool(found)


def _adapted(
    module: PretrainedModel, new: frozenset[str], chosen: PretrainedNetwork, adapter: AdapterFile | None
) -> None:
    """Freeze the pretrained parameters, and add adapters; a classifier and other new layers are trained."""
    prefix = getattr(module.model, "base_model_prefix", "")
    body = f"model.{prefix}."
    known = [name for name, _ in module.named_parameters()]
    inside = [name for name in known if name.startswith(body)] if _has_head(module.model) else known
    freeze(module, [name for name in inside or known if name not in new])
    if adapter is None:
        adapt(module, _targets(module, chosen), chosen.lora, chosen.scale)
        return
    known_layers = {name for name, layer in module.model.named_modules() if isinstance(layer, ADAPTABLE)}
    for name in adapter.layers:
        if name not in known_layers:
            raise NetworkError(
                f"network hf: the adapter is for a layer {name}, which the model does not have; take the model that it "
                "was trained with"
            )
    adapt(module, [f"model.{name}" for name in adapter.layers], adapter.rank, adapter.scale)
    if any(isinstance(layer, TiedAdapted) for layer in module.modules()):
        raise NetworkError(
            "network hf: the adapter changes a weight in one layer alone, which several layers of the model have in "
            "common; take an adapter for other layers"
        )


def _has_head(model: nn.Module) -> bool:
    """Return whether the model classifies, so that a part of it is not pretrained."""
    return getattr(model.config, "num_labels", 0) > 0 and type(model).__name__.endswith("ForSequenceClassification")


def _targets(module: nn.Module, chosen: PretrainedNetwork) -> list[str]:
    """Return the names of the layers that get adapters: none that is trained itself."""
    layers = [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, ADAPTABLE) and not any(each.requires_grad for each in layer.parameters())
    ]
    if not chosen.targets:
        found = [name for name in layers if name.rpartition(".")[2] in _ATTENTION]
        if not found:
            raise NetworkError(
                "network hf: none of the model's layers has the usual name of an attention's layer; name some with "
                f"targets=A+B: {_ends(layers)}"
            )
        return found
    chosen_layers = list[str]()
    for target in chosen.targets:
        found = [name for name in layers if name.endswith(f".{target}") or fnmatchcase(name, target)]
        if not found:
            raise NetworkError(f"network hf: targets: no layer's name ends in {target}; there are {_ends(layers)}")
        chosen_layers += found
    return chosen_layers


def _ends(names: Sequence[str]) -> str:
    ends = list(dict.fromkeys(name.rpartition(".")[2] for name in names))
    return ", ".join(ends[:12]) + (" ..." if len(ends) > 12 else "")


# ------------------------------------------------------------------------------------------------------------- writing


def export_adapter(module: nn.Module, task: Task, folder: Path) -> str:
    """Write a network's adapters in PEFT's format into a folder, and return the code that loads them.

    Raises:
        NetworkError: there are no adapters, or the format cannot say what was trained.
    """
    if not isinstance(module, PretrainedModel):
        write_adapter(module, folder, base="", task=None)
        return f'model = PeftModel.from_pretrained(your_network, "{folder}")'
    kind = "CAUSAL_LM" if task == "next-token" else "SEQ_CLS"
    write_adapter(module.model, folder, base=module.source, task=kind, turned=module.turned)
    return f'{_loading(module, task, module.source)}\nmodel = PeftModel.from_pretrained(model, "{folder}")'


def export_pretrained(module: nn.Module, task: Task, folder: Path) -> str:
    """Write a trained model as a folder that the library loads, tokenizer included; return the code that loads it.

    Adapters are added into their layers.

    Raises:
        NetworkError: the network is not a model of the library.
    """
    if not isinstance(module, PretrainedModel):
        raise NetworkError("the network is not a model of the transformers library; use --format safetensors")
    import transformers

    model: Any = cast(PretrainedModel, merged(module)).model
    with _quiet(transformers):
        plain: Any = type(model)(model.config)
        conv = transformers.pytorch_utils.Conv1D
        turned = {f"{name}.weight" for name, layer in plain.named_modules() if isinstance(layer, conv)}
        plain.load_state_dict({name: v.T if name in turned else v for name, v in model.state_dict().items()})
        plain.save_pretrained(folder)
    for file in Path(module.source).iterdir():
        if file.name in _TOKENIZER:
            shutil.copyfile(file, folder / file.name)
    return _loading(module, task, folder)


def _loading(module: PretrainedModel, task: Task, folder: Path | str) -> str:
    kind = "CausalLM" if task == "next-token" else "SequenceClassification"
    config: Any = module.model.config
    labels = "" if task == "next-token" else f", num_labels={config.num_labels}"
    return f'model = AutoModelFor{kind}.from_pretrained("{folder}"{labels})'
