"""Options that are settings: read as YAML scalars, checked together with the file, with the settings' defaults.

`OPTIONS` maps each option to its setting. Settings are imported only when needed, because help must be quick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer

#: Option -> the path of its setting.
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
    "class_weights": ("learning", "class_weights"),
    "metrics": ("simulation", "metrics"),
    "tracking": ("simulation", "tracking"),
    "seed": ("seed",),
}


def read_number(text: Any) -> Any:
    """Return the text as a YAML scalar; one that is not a number is reported later, with all other problems."""
    from fedpeer.cli.yaml_marks import scalar

    return scalar(text) if isinstance(text, str) else text


def completion_of(option: str, *, several: bool = False) -> Callable[[str], list[str]]:
    """Return the function that completes an option's value in a shell with the names to choose from.

    Args:
        several: the value is a list; its last name is completed.
    """

    def complete(incomplete: str) -> list[str]:
        from fedpeer.config.registries import registry

        before, comma, begun = incomplete.rpartition(",") if several else ("", "", incomplete)
        _, known = registry(OPTIONS[option])
        return [f"{before}{comma}{name}" for name in known if name.startswith(begun)]

    return complete


def number(help: str, metavar: str = "N", **more: Any) -> Any:
    """Declare an option that is a number."""
    return typer.Option(help=help, metavar=metavar, parser=read_number, **more)


class WithDefaults(typer.core.TyperCommand):
    """A command whose help adds the defaults of the settings behind its options."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        found = defaults()
        for parameter in self.params:
            default = found.get(str(parameter.name))
            help_text = getattr(parameter, "help", None)
            if help_text and default is not None and "default" not in help_text:
                parameter.help = f"{help_text.removesuffix('.')}; default {default}."  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


def defaults() -> Mapping[str, str]:
    """Return the default of each option whose setting has one."""
    from fedpeer.config.settings import FederationSettings, RunOptions
    from fedpeer.sims.request import DEFAULT_METHODS

    federation, run = FederationSettings(), RunOptions()
    found: dict[str, Any] = dict(run)
    for option, path in OPTIONS.items():
        if option == "algorithm":  # its default is one of several that are compared
            continue
        value: Any = federation
        for key in path:
            value = getattr(value, str(key))
        found[option] = value
    found |= {"lr": federation.learning.optimizer.settings["lr"], "compare": ",".join(DEFAULT_METHODS)}
    return {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in found.items() if value}
