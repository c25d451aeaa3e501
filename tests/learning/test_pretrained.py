"""Pretrained models: the library's own numbers, what is trained, what PEFT and the library read, and mistakes."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import pytest
import torch
from torch import Tensor, nn

from fedpeer.algorithms.draws import Draws, guarded
from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.pretrained import pretrained_network
from fedpeer.learning.adapter_files import adapters_in
from fedpeer.learning.anchors import anchored_network
from fedpeer.learning.assembly import DataShape, assemble, build_network
from fedpeer.learning.pretrained import PretrainedModel, build_pretrained, export_adapter, export_pretrained
from fedpeer.networks.registry import NetworkError
from fedpeer.slicing.flat import FlatLayout, frozen_parameters
from fedpeer.slicing.trace import trace
from tests.learning.pretrained_models import KNOWN, saved_model

CLASSIFIERS = ("bert", "roberta", "distilbert", "llama", "gpt2")
WRITERS = ("llama", "gpt2")
LENGTH = 8
# From PEFT 0.21 with transformers 5.24.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
Task = Literal["classification", "multi-label", "next-token"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in CLASSIFIERS:
        saved_model(name, folder)
    return folder


def shape(task: Task = "classification", *, length: int = LENGTH, vocabulary: int = 19) -> DataShape:
    return DataShape(
        name="reviews", input_shape=(length,), input_kind="tokens", task=task, classes=0 if task == "next-token" else 3,
        targets=1, vocabulary=vocabulary,
    )  # fmt: skip


def built(folder: Path, settings: str = "", task: Task = "classification") -> PretrainedModel:
    choice = parse_choice(f"hf:{folder}{settings}")
    found = build_network(choice, shape(task), 19 if task == "next-token" else 3, Draws(0), _no_code, build_pretrained)
    return cast(PretrainedModel, found.eval())


def _no_code(name: str) -> Any:
    raise AssertionError("no code of the user's is run")


def tokens() -> Tensor:
    x = torch.randint(4, 19, (5, LENGTH), generator=torch.Generator().manual_seed(1))
    x[1, 5:], x[2, 1:] = 0, 0  # shorter texts
    return x


def with_effect(module: nn.Module) -> nn.Module:
    """Fill the trained parameters with random numbers."""
    with guarded(3), torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn_like(parameter) / 3)
    return module


def padding_of(name: str) -> int:
    """Return the padding token of a model; GPT-2 has none, so its end-of-text token is used."""
    return 3 if name == "gpt2" else 0


def from_library(folder: Path, task: Task, name: str) -> Any:
    import transformers

    if task == "next-token":
        return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    config = transformers.AutoConfig.from_pretrained(folder, num_labels=3, pad_token_id=padding_of(name))
    return transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, config=config, ignore_mismatched_sizes=True
    ).eval()


def answers(model: Any, x: Tensor, padding: int) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=x, attention_mask=(x != padding).long()).logits
    return found


@pytest.mark.parametrize("settings", ["", ",lora=2"])
@pytest.mark.parametrize(
    ("name", "task"),
    [
        *((name, "classification") for name in CLASSIFIERS),
        *((name, "next-token") for name in WRITERS),
        ("bert", "multi-label"),
    ],
)
def test_it_gives_the_librarys_numbers(models: Path, name: str, task: Task, settings: str) -> None:
    module, x = built(models / name, settings, task), tokens()
    theirs, padding = from_library(models / name, task, name), padding_of(name)
    x = torch.where(x == 0, padding, x)
    merged = {n.replace(".base.", "."): v for n, v in module.model.state_dict().items() if "lora_" not in n}
    heads = {n: v for n, v in merged.items() if n.split(".")[0] in ("classifier", "score", "pre_classifier")}
    assert set(heads) <= set(theirs.state_dict())
    theirs.load_state_dict(heads, strict=False)  # new ones begin at random
    with torch.no_grad():
        torch.testing.assert_close(module(x), answers(theirs, x, padding), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_with_adapters_only_they_and_the_classifier_are_trained(models: Path, name: str) -> None:
    module = built(models / name, ",lora=2")
    trained = {each.name for each in FlatLayout.of(module).tensors}
    heads = ("model.classifier.", "model.score.", "model.pre_classifier.")
    assert all("lora_" in each or each.startswith(heads) for each in trained)
    assert len(adapters_in(module)) == (2 if name == "gpt2" else 4)  # two layers: queries and values, or one with both
    assert any(each.startswith(heads) for each in trained)


def test_a_model_that_writes_text_trains_its_adapters_alone(models: Path) -> None:
    trained = {each.name for each in FlatLayout.of(built(models / "llama", ",lora=2", "next-token")).tensors}
    assert trained
    assert all("lora_" in each for each in trained)


def test_without_adapters_all_is_trained(models: Path) -> None:
    assert not frozen_parameters(built(models / "bert"))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_rank_of_adapters_is_sliced(models: Path, name: str) -> None:
    parts = {part.name: part.size for part in trace(built(models / name, ",lora=2"), tokens()).parts}
    factors = [size for part, size in parts.items() if part.endswith("lora_A")]
    assert set(factors) == {2}


@pytest.mark.parametrize("settings", ["", ",lora=2"])
def test_learning_starts_from_what_was_loaded(models: Path, settings: str) -> None:
    federation = Federation(network=parse_choice(f"hf:{models / 'bert'}{settings}"))
    made = assemble(federation, shape(), 0, _no_code, pretrained=build_pretrained)
    assert torch.equal(made.start("peer1"), FlatLayout.of(made.module).flatten(built(models / "bert", settings)))


def test_targets_and_alpha(models: Path) -> None:
    module = built(models / "bert", ",lora=2,alpha=6,targets=dense+*.1.attention.self.key")
    adapted = adapters_in(module.model)
    assert {name.rpartition(".")[2] for name in adapted} == {"dense", "key"}
    assert {layer.scale for layer in adapted.values()} == {3.0}


@pytest.mark.skipif(sys.platform != "linux", reason="which file a tensor is mapped from is seen in /proc of Linux")
@pytest.mark.parametrize("name", [name for name in CLASSIFIERS if name != "gpt2"])
def test_frozen_parameters_are_those_of_the_mapped_file(models: Path, name: str) -> None:
    """All processes of a machine share one copy. GPT-2's layers are transposed, so each process has its own."""
    frozen = frozen_parameters(built(models / name, ",lora=2"))
    assert {mapped_from(parameter) for parameter in frozen.values()} == {str(models / name / "model.safetensors")}


def mapped_from(tensor: Tensor) -> str:
    """Return the file in whose mapping a tensor's numbers are; "": in none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *others = line.split(maxsplit=5)
        first, last = (int(each, 16) for each in span.split("-"))
        if first <= tensor.data_ptr() < last:
            return others[4] if len(others) > 4 else ""
    raise AssertionError("it is nowhere")


@pytest.mark.parametrize(("name", "task"), [*((c, "classification") for c in CLASSIFIERS), ("llama", "next-token")])
def test_peft_loads_what_is_exported(models: Path, name: str, task: Task, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="the package peft is missing")
    module = with_effect(built(models / name, ",lora=2,alpha=3", task))
    code = export_adapter(module, task, tmp_path / "adapter")
    assert f'from_pretrained("{models / name}"' in code
    assert f'PeftModel.from_pretrained(model, "{tmp_path / "adapter"}")' in code
    theirs = peft.PeftModel.from_pretrained(from_library(models / name, task, name), tmp_path / "adapter").eval()
    padding = padding_of(name)
    x = torch.where(tokens() == 0, padding, tokens())
    with torch.no_grad():
        torch.testing.assert_close(module(x), answers(theirs, x, padding), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "settings"), [("bert-masked", ",lora=2"), ("roberta", ",lora=2,targets=query+dense")])
def test_what_the_folder_does_not_have_is_trained_and_gets_no_adapter(
    models: Path, name: str, settings: str, tmp_path: Path
) -> None:
    """A pooler is not in the folder of a masked language model; layers of a classifier may be called like others."""
    peft = pytest.importorskip("peft", reason="the package peft is missing")
    folder = models / name
    if name == "bert-masked":
        folder = saved_model(name, tmp_path)
    module = with_effect(built(folder, settings))
    new = [p for n, p in module.named_parameters() if "pooler" in n or "classifier" in n]
    assert all(each.requires_grad for each in new)
    assert not any("classifier" in each for each in adapters_in(module))
    export_adapter(module, "classification", tmp_path / "adapter")
    theirs = peft.PeftModel.from_pretrained(from_library(folder, "classification", name), tmp_path / "adapter").eval()
    with torch.no_grad():
        torch.testing.assert_close(module(tokens()), answers(theirs, tokens(), 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "head"), [("bert", "classifier"), ("distilbert", "pre_classifier"), ("llama", "score")]
)
def test_what_is_trained_whole_is_named_in_the_adapters_settings(
    models: Path, name: str, head: str, tmp_path: Path
) -> None:
    export_adapter(built(models / name, ",lora=2"), "classification", tmp_path / "adapter")
    assert head in json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["modules_to_save"]


@pytest.mark.parametrize("other", [None, 1], ids=str)
def test_short_texts_are_filled_up_as_the_tokenizer_does(models: Path, other: int | None, tmp_path: Path) -> None:
    """The settings of many decoders lack the padding token, or have another one than the tokenizer beside them."""
    folder = shutil.copytree(models / "llama", tmp_path / "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pad_token_id": other}))
    padded = replace(shape(), padding=0)
    module, whole = (
        build_network(parse_choice(f"hf:{each}"), padded, 3, Draws(0), _no_code, build_pretrained).eval()
        for each in (folder, models / "llama")
    )
    with torch.no_grad():
        assert torch.equal(module(tokens()), whole(tokens()))


def test_an_empty_text_has_an_answer(models: Path) -> None:
    """Attention over padding alone would have no weights to distribute."""
    with torch.no_grad():
        assert built(models / "llama")(torch.zeros((1, LENGTH), dtype=torch.int64)).isfinite().all()
        empty, full = torch.zeros((1, LENGTH), dtype=torch.int64), torch.zeros((1, LENGTH), dtype=torch.int64)
        full[0, 1:] = 5
        bert = built(models / "bert")
        assert not torch.equal(bert(empty), bert(full))
        assert torch.equal(bert._attended(empty), torch.eye(LENGTH, dtype=torch.int64)[:1])


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_what_is_exported_is_read_again(models: Path, name: str, tmp_path: Path) -> None:
    module = with_effect(built(models / name, ",lora=2,alpha=3"))
    export_adapter(module, "classification", tmp_path / "adapter")
    again = built(models / name, f",adapter={tmp_path / 'adapter'}")
    with torch.no_grad():
        torch.testing.assert_close(again(tokens()), module(tokens()))
    assert [each.name for each in FlatLayout.of(again).tensors] == [each.name for each in FlatLayout.of(module).tensors]


@pytest.mark.parametrize("stabilised", [False, True])
def test_what_peft_saved_is_read(models: Path, tmp_path: Path, stabilised: bool) -> None:
    peft = pytest.importorskip("peft", reason="the package peft is missing")
    targets = ["query", "value", "word_embeddings"]
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, target_modules=targets, use_rslora=stabilised)
    theirs = peft.get_peft_model(from_library(models / "bert", "classification", "bert"), config).eval()
    with_effect(theirs)
    theirs.save_pretrained(tmp_path)
    module = built(models / "bert", f",adapter={tmp_path}")
    with torch.no_grad():
        torch.testing.assert_close(module(tokens()), answers(theirs, tokens(), 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "task"), [("bert", "classification"), ("gpt2", "classification"), ("gpt2", "next-token")]
)
@pytest.mark.parametrize("settings", ["", ",lora=2"])
def test_the_library_loads_a_model_that_is_exported_whole(
    models: Path, name: str, task: Task, settings: str, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    module = with_effect(built(models / name, settings, task))
    export_pretrained(module, task, tmp_path / "whole")
    theirs = from_library(tmp_path / "whole", task, name)
    padding = padding_of(name)
    x = torch.where(tokens() == 0, padding, tokens())
    with torch.no_grad():
        torch.testing.assert_close(module(x), answers(theirs, x, padding), rtol=1e-4, atol=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path / "whole")("good film")["input_ids"]


def test_a_network_of_ones_own_is_exported_with_the_names_that_it_has(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="the package peft is missing")
    from fedpeer.networks.lora import adapt, freeze

    plain = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    module.load_state_dict(plain.state_dict())
    freeze(module, ["0"])
    with_effect(adapt(module, ["0"], 2, 1.5))
    export_adapter(module, "classification", tmp_path)
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path)
    torch.testing.assert_close(theirs(torch.ones(3, 4)), module(torch.ones(3, 4)))


class TestMistakes:
    def test_of_folders(self, models: Path, tmp_path: Path) -> None:
        with pytest.raises(
            NetworkError, match=r"there is no .*config\.json; name the folder into which the model was saved"
        ):
            built(tmp_path)
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(NetworkError, match="no safetensors file"):
            built(tmp_path)
        (tmp_path / "model.safetensors").write_bytes(b"")
        with pytest.raises(NetworkError, match="cannot be loaded: ValueError"):
            built(tmp_path)

    def test_a_folders_code_is_not_run(self, models: Path, tmp_path: Path) -> None:
        config = json.loads((models / "bert" / "config.json").read_text())
        config |= {"model_type": "unknown", "auto_map": {"AutoConfig": "harm.Config", "AutoModel": "harm.Model"}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "harm.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
        (tmp_path / "model.safetensors").write_bytes((models / "bert" / "model.safetensors").read_bytes())
        with pytest.raises(NetworkError, match="cannot be loaded"):
            built(tmp_path)
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize(
        ("name", "changed", "message"),
        [
            ("bert", {"length": 40}, "reads at most 24 tokens.*length=24"),
            ("roberta", {"length": 24}, "reads at most 23 tokens.*length=23"),  # it counts from 1 on
            ("bert", {"vocabulary": KNOWN + 1}, "take the model's own tokenizer"),
        ],
    )
    def test_of_data(self, models: Path, name: str, changed: dict[str, Any], message: str) -> None:
        choice = parse_choice(f"hf:{models / name}")
        with pytest.raises(NetworkError, match=message):
            build_network(choice, shape(**changed), 3, Draws(0), _no_code, build_pretrained)

    def test_of_numbers(self, models: Path) -> None:
        numbers = DataShape(
            name="wards", input_shape=(4,), input_kind="features", task="classification", classes=2, targets=1,
            vocabulary=0,
        )  # fmt: skip
        with pytest.raises(NetworkError, match=r"takes text, and wards has features.*text=NAME"):
            build_network(parse_choice(f"hf:{models / 'bert'}"), numbers, 2, Draws(0), _no_code, build_pretrained)

    def test_a_model_that_sees_what_it_is_to_predict(self, models: Path) -> None:
        with pytest.raises(NetworkError, match=r"sees the tokens after the one.*a causal language model"):
            built(models / "bert", "", "next-token")

    def test_a_model_of_images(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"model_type": "vit"}')
        (tmp_path / "model.safetensors").touch()
        with pytest.raises(NetworkError, match=r"\(vit\) does not read text"):
            built(tmp_path)

    def test_another_model_than_the_digest_names(self, models: Path) -> None:
        with pytest.raises(NetworkError, match="not the one that this network was trained with"):
            built(models / "bert", f",digest={'0' * 32}")

    def test_of_targets(self, models: Path) -> None:
        with pytest.raises(NetworkError, match="no layer's name ends in queries; there are word_embeddings"):
            built(models / "bert", ",lora=2,targets=queries")

    def test_of_adapters(self, models: Path, tmp_path: Path) -> None:
        with pytest.raises(NetworkError, match=r"there is no .*adapter_config.json"):
            built(models / "bert", f",adapter={tmp_path}")
        export_adapter(built(models / "roberta", ",lora=2"), "classification", tmp_path)
        with pytest.raises(NetworkError, match=r"for a layer roberta.encoder.*which the model does not have"):
            built(models / "bert", f",adapter={tmp_path}")
        config = json.loads((tmp_path / "adapter_config.json").read_text())
        (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
        with pytest.raises(NetworkError, match="use_dora is True, which is not supported"):
            built(models / "roberta", f",adapter={tmp_path}")
        (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"init_lora_weights": "pissa_niter_4"}))
        with pytest.raises(NetworkError, match="init_lora_weights is pissa_niter_4, which is not supported"):
            built(models / "roberta", f",adapter={tmp_path}")

    def test_of_an_adapter_that_is_not_there(self, models: Path, tmp_path: Path) -> None:
        with pytest.raises(NetworkError, match=r"there is no .*nowhere/adapter_config.json.* the adapter was saved"):
            anchored_network(parse_choice(f"hf:{models / 'bert'},adapter=nowhere"), tmp_path)

    def test_no_adapters_to_export(self, models: Path, tmp_path: Path) -> None:
        with pytest.raises(NetworkError, match="no adapters"):
            export_adapter(built(models / "bert"), "classification", tmp_path)
        with pytest.raises(NetworkError, match="not a model of the transformers library"):
            export_pretrained(nn.Linear(2, 2), "classification", tmp_path)


def test_the_classifier_and_the_adapters_are_drawn_by_the_seed(models: Path) -> None:
    one, same = built(models / "bert", ",lora=2"), built(models / "bert", ",lora=2")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))


def test_settings() -> None:
    assert pretrained_network(parse_choice("hf:here,lora=4,alpha=8")).scale == 2.0
