"""Folders of pretrained models and adapters in Hugging Face's format: which files count, and their digest. No torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedpeer.networks.registry import NetworkError

#: Files of settings that do not concern the network.
_BESIDE = ("tokenizer_config.json", "generation_config.json")


def folder_digest(folder: Path, what: str = "model") -> str:
    """Return the hex BLAKE2b-128 of a folder's files about the network: settings and parameters.

    Args:
        what: "model" or "adapter".

    Raises:
        NetworkError: the folder has no settings or no parameters, or a file cannot be read.
    """
    settings = [each for each in sorted(folder.glob("*config.json")) if each.name not in _BESIDE]
    tensors = sorted(folder.glob("*.safetensors"))
    if not settings:
        name = "config.json" if what == "model" else "adapter_config.json"
        raise NetworkError(
            f"network hf: there is no {folder / name}; name the folder into which the {what} was saved with "
            "save_pretrained"
        )
    if not tensors:
        raise NetworkError(
            f"network hf: {folder} has no safetensors file, and other formats are not read; load the model with "
            "transformers, and save it with save_pretrained"
        )
    hashed = hashlib.blake2b(digest_size=16)
    for file in (*settings, *tensors):
        try:
            with file.open("rb") as opened:
                content = hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        except OSError as problem:
            raise NetworkError(f"network hf: {file} cannot be read ({problem.strerror})") from None
        hashed.update(f"{file.name} {content}\n".encode())
    return hashed.hexdigest()
