"""A user's own folder of images, with one subfolder for each class. Needs the extra `fedpeer[images]`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.dataset import DataError, Dataset
from fedpeer.data.own.columns import described, drawn_test_part
from fedpeer.data.own.mistakes import FileMistakes, check_chosen_names, nearest_of, opening

_SEEN_THROUGH = "it has transparent pixels; say what is behind them with background=white or =black"
#: Largest side of images after scaling, in pixels.
SIDE_MAX = 4096
#: Factor on a shade of 2 or 4 bits when it is read as a shade of 8 bits.
_STEPS = {"L;2": 85, "L;4": 17}


def images(
    *,
    path: str,
    resize: tuple[int, ...] = (),
    colours: Literal["grey", "rgb"] | None = None,
    background: Literal["white", "black"] | None = None,
    classes: tuple[str, ...] = (),
    test_fraction: float | None = None,
) -> Dataset:
    """Folder with a folder of images for each class; x (N, C, H, W) in [0, 1], from 0 to the most of 8 or 16 bits.

    Args:
        resize: width, or width+height, to which all images are scaled; default: all must have the same size.
        colours: colours to which all images are converted; default: all must be grey, or all RGB.
        background: colour behind transparent pixels; default: no pixel may be transparent.
        classes: the class names in order, some of which may have no folder; default: the folders' names by alphabet.

    Raises:
        DataError: with the file of every mistake.
    """
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise DataError(f"{path}: reading images needs Pillow; install it with pip install fedpeer[images]") from None
    root = Path(path)
    if root.is_file():
        raise DataError(f"{path} is a file, not a folder; name the one that holds a folder of images for each class")
    if not root.is_dir():
        raise DataError(f"there is no folder {path}; it must hold one folder of images for each class")
    if len(resize) > 2 or any(not 1 <= side <= SIDE_MAX for side in resize):
        given = "+".join(map(str, resize))
        raise DataError(f"resize={given}: write one size in pixels, or width+height, each at most {SIDE_MAX}")
    mistakes = FileMistakes(path)
    with opening(path):
        folders = sorted(each.name for each in root.iterdir() if each.is_dir() and each.name[0] != ".")
    check_chosen_names(classes, mistakes)
    mistakes.stop_if_any()
    names = classes or tuple(folders)
    if len(names) < 2:
        raise mistakes.stop("", f"it has {len(names)} folders in it; it must have one for each class, two or more")
    _check_classes(folders, names, mistakes)
    files = [
        (file, number)
        for number, name in enumerate(names)
        if name in folders
        for file in _inside(root / name, mistakes, may_be_empty=bool(classes))
    ]
    if not files:
        mistakes.add("", f"there is no image in a folder of the classes {', '.join(names)}; put some in")
    mistakes.stop_if_any()
    size = (resize[0], resize[-1]) if resize else None
    found = [_read(file, size, colours, background, mistakes) for file, _ in files]
    mistakes.stop_if_any()
    for (file, _), image in zip(files, found, strict=True):
        if image.shape != found[0].shape:
            mistakes.add(
                str(file.relative_to(root)),
                f"it is {_described(image)}, but {files[0][0].relative_to(root)} is {_described(found[0])}; bring them "
                "to one size with resize=..., to one kind with colours=grey or colours=rgb",
                group="size" if image.shape[0] == found[0].shape[0] else "colours",
            )
    mistakes.stop_if_any()
    y = np.array([number for _, number in files], dtype=np.int64)
    return Dataset(
        name=root.name,
        x=np.stack(found),
        y=y,
        task="classification",
        input_kind="image",
        classes=names,
        test_N=drawn_test_part(y, "classification", test_fraction),
        source=f"{path}, {described('classification', names, guessed=False)}",
    )


def _check_classes(folders: Sequence[str], names: Sequence[str], mistakes: FileMistakes) -> None:
    for folder in folders:
        if folder not in names:
            near = nearest_of(folder, names)
            hint = f'did you mean "{near}"?' if near else f"classes are {', '.join(names)}"
            mistakes.add(folder, f"this folder is not a class; {hint}")


def _inside(folder: Path, mistakes: FileMistakes, *, may_be_empty: bool) -> list[Path]:
    with opening(str(folder)):
        found = sorted(each for each in folder.iterdir() if each.name[0] != ".")
    for each in found:
        if each.is_dir():
            place = f"{folder.name}/{each.name}"
            mistakes.add(place, f"it is a folder; put its images into {folder.name} itself", (folder, "deeper"))
    if not found and not may_be_empty:
        mistakes.add(folder.name, "there is no image in this folder; put some in or remove the folder")
    return found


def _read(
    file: Path, size: tuple[int, int] | None, colours: str | None, background: str | None, mistakes: FileMistakes
) -> NDArray[np.float32]:
    """Read one image, (C, H, W) in [0, 1]; return an empty array after a mistake."""
    import PIL.Image
    import PIL.ImageOps

    place = f"{file.parent.name}/{file.name}"
    try:
        with warnings.catch_warnings(action="error", category=PIL.Image.DecompressionBombWarning):
            image: Any = PIL.Image.open(file)
            stored = image.tile[0][3] if image.format == "PNG" and image.tile else ""
            deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")
            image.load()
    except (
        OSError,
        ValueError,
        SyntaxError,
        PIL.Image.DecompressionBombError,
        PIL.Image.DecompressionBombWarning,
    ) as found:
        mistakes.add(place, f"it cannot be read as an image ({type(found).__name__}); repair or remove it")
        return np.empty(0, dtype=np.float32)
    with contextlib.suppress(Exception):  # a damaged note on the camera's orientation does not damage the pixels
        image = PIL.ImageOps.exif_transpose(image)
    try:
        _mend_transparent_shade(image, stored)
        shown = _grey_of(image, background) if deep else _shown(image, colours, background)
    except ValueError as problem:
        mistakes.add(place, str(problem), group=str(problem))
        return np.empty(0, dtype=np.float32)
    shade = np.asarray(shown.resize(size) if size else shown, dtype=np.float32)
    pixels: NDArray[np.float32] = np.clip(shade / 255, 0, 1)
    if pixels.ndim == 2:
        return np.stack([pixels] * (3 if colours == "rgb" else 1))
    return pixels.transpose(2, 0, 1)


def _mend_transparent_shade(image: Any, stored: str) -> None:
    """Convert the transparent shade of a PNG, which Pillow leaves as stored, to the bits of the pixels that were read.

    Args:
        stored: Pillow's name for the form of the stored pixels.

    Raises:
        ValueError: the pixels that were read have fewer bits than the shade.
    """
    if "transparency" not in image.info:
        return
    if stored == "RGB;16B":
        raise ValueError("its transparent colour has 16 bits, of which 8 are read; save it with 8 bits for a colour")
    if stored in _STEPS:
        image.info["transparency"] *= _STEPS[stored]


def _grey_of(image: Any, background: str | None) -> Any:
    """Return an image of 16 bits in real numbers from 0 to 255: Pillow's own conversion clips at 255.

    Raises:
        ValueError: no background is set for its transparent pixels.
    """
    import PIL.Image

    shade_HW = np.asarray(image).astype(np.float32)
    clear_HW = shade_HW == image.info.get("transparency", -1)
    if clear_HW.any() and background is None:
        raise ValueError(_SEEN_THROUGH)
    return PIL.Image.fromarray(np.where(clear_HW, 255 if background == "white" else 0, shade_HW / 257))


def _shown(image: Any, colours: str | None, background: str | None) -> Any:
    """Return an image as a person sees it, in mode L or RGB.

    Raises:
        ValueError: it cannot be converted; the message has the way out.
    """
    import PIL.Image

    if image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits, whose white is not known; save it with 8 or 16 bits")
    if image.mode not in ("L", "RGB") and colours is None:
        raise ValueError(
            f"its pixels are {image.mode}, not grey or RGB; bring all to one with colours=grey or colours=rgb"
        )
    kept = image.mode if colours is None else {"grey": "L", "rgb": "RGB"}[colours]
    if image.mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        if image.getextrema()[3][0] < 255:
            if background is None:
                raise ValueError(_SEEN_THROUGH)
            image = PIL.Image.alpha_composite(PIL.Image.new("RGBA", image.size, background), image)
        image = image.convert("RGB")
    return image.convert(kept)


def _described(image: NDArray[np.float32]) -> str:
    channels, height, width = image.shape
    return f"{width} x {height} {'grey' if channels == 1 else 'RGB'}"
