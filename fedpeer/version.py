"""The version of fedpeer, said once: package metadata, `fedpeer --version`, runs and peers' status follow from it."""

__version__ = "0.3.0"
