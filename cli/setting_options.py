"""Options that are settings: read as YAML reads them, checked with the file's, and with the settings' own defaults.

`OPTIONS` says which setting each is. Nothing here imports settings before they are asked for: help must be quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

#: Option -> the setting that it is.
OPTIONS: dict[str, tuple[str | int, ...]] = {
    "peers": ("simulation", "peers"),
    "dataset": ("simulation", "dataset"),
    "split": ("simulation", "split"),
    "network": ("network",),
    "algorithm": ("learning", "algorithm"),
    "topology": ("gossip", "topology"),
    "protocol": ("gossip", "protocol"),
    "tolerance": ("gossip", "tolerance"),
    "exchanges": ("gossip", "exchanges"),
    "rounds": ("learning", "rounds"),
    "steps": ("learning", "steps_between_averaging"),
    "batch_size": ("learning", "batch_size"),
    "participation": ("learning", "participation"),
    "optimizer": ("learning", "optimizer"),
    "loss": ("learning", "loss"),
    "seed": ("seed",),
}


def read_number(text: Any) -> Any:
    """Return the YAML scalar that the text is; what is no number is refused with everything else that is wrong."""
    from fedpeer.cli.yaml_marks import scalar

    return scalar(text) if isinstance(text, str) else text


def number(help: str, metavar: str = "N", **more: Any) -> Any:
    """An option that is a number."""
    return typer.Option(help=help, metavar=metavar, parser=read_number, **more)


class WithDefaults(typer.core.TyperCommand):
    """A command whose help adds the defaults of the settings that its options are."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        found = defaults()
        for parameter in self.params:
            default = found.get(str(parameter.name))
            help_text = getattr(parameter, "help", None)
            if help_text and default is not None and "default" not in help_text:
                parameter.help = f"{help_text.removesuffix('.')}; default {default}."  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


def defaults() -> Mapping[str, str]:
    """Return the defaults of options, where the settings have one."""
    from fedpeer.config.settings import FederationSettings, RunOptions
    from fedpeer.sims.request import DEFAULT_METHODS

    federation, run = FederationSettings(), RunOptions()
    found: dict[str, Any] = dict(run)
    for option, path in OPTIONS.items():
        if option == "algorithm":  # one of those that are compared
            continue
        value: Any = federation
        for key in path:
            value = getattr(value, str(key))
        found[option] = value
    found |= {"lr": federation.learning.optimizer.settings["lr"], "compare": ",".join(DEFAULT_METHODS)}
    return {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in found.items() if value}
