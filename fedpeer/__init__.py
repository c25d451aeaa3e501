"""fedpeer: learning together without pooling data.

The public face. Names are imported when they are first used (PEP 562), so that `import fedpeer` is quick and
`fedpeer --help` needs no torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpeer.data.dataset import Dataset, Share, Split
    from fedpeer.peer.core.federation import Federation

__version__ = "0.1.0"

#: Name -> module that defines it. What is listed here is the public API; the rest may change between versions.
_PUBLIC = {
    "Dataset": "fedpeer.data.dataset",
    "Share": "fedpeer.data.dataset",
    "Split": "fedpeer.data.dataset",
    "Federation": "fedpeer.peer.core.federation",
}

__all__ = ["Dataset", "Federation", "Share", "Split"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        from importlib import import_module

        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'fedpeer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
