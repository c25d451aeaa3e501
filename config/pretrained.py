"""A pretrained model of Hugging Face's format as the network, `hf:FOLDER,lora=8`: its settings, without torch.

Paths are this machine's own: peers compare the digests of what is there.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedpeer.config.choice import Choice, ChoiceError, bind_settings

#: Name of the choice.
PRETRAINED = "hf"
#: Settings that are paths, and those with the digests of what is there.
PATHS = {"path": "digest", "adapter": "adapter_digest"}


@dataclass(frozen=True, kw_only=True)
class PretrainedNetwork:
    """A pretrained text model in a folder of Hugging Face's format (extra `fedpeer[hf]`), whole or with adapters.

    path             the folder, with config.json and safetensors files
    lora             rank of the adapters; everything but adapters and classifier is frozen; 0: all is trained
    alpha            factor of an adapter times its rank; default: the rank, a factor of 1
    targets          ends of the names of layers that get adapters, such as query+value; default: those of the
                     attention's queries and values
    adapter          folder of an adapter in PEFT's format to start from, instead of `lora`, `alpha` and `targets`
    digest           filled in by fedpeer
    adapter_digest   filled in by fedpeer
    """

    path: str
    lora: int = 0
    alpha: float | None = None
    targets: tuple[str, ...] = ()
    adapter: str = ""
    digest: str = ""
    adapter_digest: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.lora <= 100_000:
            raise ChoiceError(f"hf: lora = {self.lora}: write the rank of the adapters, or 0 for none")
        if self.alpha is not None and not 0 < self.alpha <= 1e6:
            raise ChoiceError(f"hf: alpha = {self.alpha:g}: write a number above 0")
        if self.adapter and (self.lora or self.alpha is not None or self.targets):
            raise ChoiceError("hf: an adapter has its own rank, alpha and targets; leave out lora, alpha and targets")
        if not self.adapter and not self.lora and (self.alpha is not None or self.targets):
            raise ChoiceError("hf: alpha and targets are for adapters; add lora=8, or leave them out")

    @property
    def adapts(self) -> bool:
        """True if adapters are trained, and the model itself is not."""
        return bool(self.lora or self.adapter)

    @property
    def scale(self) -> float:
        """Factor of each adapter."""
        return 1.0 if self.alpha is None else self.alpha / self.lora


def pretrained_network(choice: Choice) -> PretrainedNetwork:
    """Return the settings of a choice `hf`.

    Raises:
        ChoiceError: they are unknown or out of range.
    """
    return PretrainedNetwork(**bind_settings(choice, PretrainedNetwork))


def without_paths(choice: Choice) -> Choice:
    """Return the choice with digests only: each machine may have the files at other paths."""
    if choice.name != PRETRAINED:
        return choice
    kept = {name: value for name, value in choice.settings.items() if name not in PATHS}
    return Choice(choice.name, None, kept)


def without_adapters(choice: Choice | None) -> Choice | None:
    """Return the choice of the same model without adapters."""
    if choice is None or choice.name != PRETRAINED:
        return choice
    kept = {name: value for name, value in choice.settings.items() if name in ("path", "digest")}
    return Choice(choice.name, choice.value, kept)
