"""A user's own folder of images: one folder with the images of each class. Needs the extra `fedpeer[images]`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.dataset import DataError, Dataset
from fedpeer.data.own.columns import described, drawn_test_part
from fedpeer.data.own.mistakes import FileMistakes


def images(
    *,
    path: str,
    resize: tuple[int, ...] = (),
    colours: Literal["grey", "rgb"] | None = None,
    classes: tuple[str, ...] = (),
    test_fraction: float | None = None,
) -> Dataset:
    """Folder with a folder of images for each class; x (N, C, H, W) in [0, 1].

    Args:
        resize: width, or width+height, to which all images are scaled; default: all must have the same size.
        colours: colours to which all images are converted; default: all must be grey, or all RGB.
        classes: the class names in order; default: the folders' names by alphabet.

    Raises:
        DataError: with the file of every mistake.
    """
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise DataError(f"{path}: reading images needs Pillow; install it with pip install fedpeer[images]") from None
    root = Path(path)
    if not root.is_dir():
        raise DataError(f"there is no folder {path}; it must hold one folder of images for each class")
    if len(resize) > 2 or any(side < 1 for side in resize):
        raise DataError(f"resize={'+'.join(map(str, resize))}: write one size in pixels, or width+height")
    mistakes = FileMistakes(path)
    names = classes or tuple(sorted(each.name for each in root.iterdir() if each.is_dir() and each.name[0] != "."))
    if len(names) < 2:
        raise mistakes.stop("", f"it has {len(names)} folders in it; it must have one for each class, two or more")
    files = [(file, number) for number, name in enumerate(names) for file in _inside(root / name, mistakes)]
    mistakes.stop_if_any()
    size = (resize[0], resize[-1]) if resize else None
    found = [_read(file, size, {"grey": "L", "rgb": "RGB", None: None}[colours], mistakes) for file, _ in files]
    mistakes.stop_if_any()
    for (file, _), image in zip(files, found, strict=True):
        if image.shape != found[0].shape:
            mistakes.add(
                str(file.relative_to(root)),
                f"it is {_described(image)}, but {files[0][0].relative_to(root)} is {_described(found[0])}; bring them "
                "to one size with resize=..., to one kind with colours=grey or colours=rgb",
                group=image.shape,
            )
    mistakes.stop_if_any()
    y = np.array([number for _, number in files], dtype=np.int64)
    return Dataset(
        name=root.name,
        x=np.stack(found).astype(np.float32) / 255,
        y=y,
        task="classification",
        input_kind="image",
        classes=names,
        test_N=drawn_test_part(y, "classification", test_fraction),
        source=f"{path}, {described('classification', names, guessed=False)}",
    )


def _inside(folder: Path, mistakes: FileMistakes) -> list[Path]:
    files = (
        sorted(file for file in folder.iterdir() if file.is_file() and file.name[0] != ".") if folder.is_dir() else []
    )
    if not files:
        mistakes.add(folder.name, "there is no image in this folder; put some in or remove the folder")
    return files


def _read(file: Path, size: tuple[int, int] | None, mode: str | None, mistakes: FileMistakes) -> NDArray[np.uint8]:
    """Read one image, (C, H, W) in 0..255; return an empty array after a mistake."""
    import PIL.Image

    place = f"{file.parent.name}/{file.name}"
    try:
        with warnings.catch_warnings(action="error", category=PIL.Image.DecompressionBombWarning):
            image: Any = PIL.Image.open(file)
            image.load()
    except (
        OSError,
        ValueError,
        SyntaxError,
        PIL.Image.DecompressionBombError,
        PIL.Image.DecompressionBombWarning,
    ) as found:
        mistakes.add(place, f"it cannot be read as an image ({type(found).__name__}); repair or remove it")
        return np.empty(0, dtype=np.uint8)
    image = image.convert(mode) if mode else image
    if image.mode not in ("L", "RGB"):
        problem = f"its pixels are {image.mode}, not grey or RGB; bring all to one with colours=grey or colours=rgb"
        mistakes.add(place, problem, group=image.mode)
        return np.empty(0, dtype=np.uint8)
    pixels = np.asarray(image.resize(size) if size else image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _described(image: NDArray[np.uint8]) -> str:
    channels, height, width = image.shape
    return f"{width} x {height} {'grey' if channels == 1 else 'RGB'}"
