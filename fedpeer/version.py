"""The version of fedpeer, as package metadata, `fedpeer --version`, runs and the status of peers show it."""

__version__ = "0.3.0"
