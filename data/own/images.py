"""A user's own folder of images, with a folder for each class or for each user, and new images for a trained model.

Needs the extra `fedpeer[images]`.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.dataset import DataError, Dataset
from fedpeer.data.own.columns import described, drawn_test_part, users
from fedpeer.data.own.mistakes import FileMistakes, check_chosen_names, nearest_of, opening

#: Largest side of images after scaling, in pixels.
SIDE_MAX = 4096
#: Factor on a shade of 2 or 4 bits when it is read as a shade of 8 bits.
_STEPS = {"L;2": 85, "L;4": 17}
Colours = Literal["grey", "rgb"]
Background = Literal["white", "black"]


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """How images become arrays.

    size         (width, height) to which they are scaled; None: they keep their sizes
    colours      colours to which they are converted; None: they keep theirs
    background   colour behind transparent pixels; None: no pixel may be transparent
    adjustable   whether the user can still choose these settings; not if a model was trained with them
    """

    size: tuple[int, int] | None
    colours: Colours | None
    background: Background | None
    adjustable: bool = True

    def way_out(self, setting: str, otherwise: str) -> str:
        return setting if self.adjustable else f"{otherwise}, as in the images that the model was trained on"

    def seen_through(self) -> str:
        """Return the mistake of an image with transparent pixels without a background."""
        setting = "say what is behind them with background=white or =black"
        return f"it has transparent pixels; {self.way_out(setting, 'save it without any')}"


def images(
    *,
    path: str,
    user: Literal["folder"] | None = None,
    resize: tuple[int, ...] = (),
    colours: Colours | None = None,
    background: Background | None = None,
    classes: tuple[str, ...] = (),
    test_fraction: float | None = None,
) -> Dataset:
    """Folder with a folder of images for each class; x (N, C, H, W) in [0, 1], from 0 to the most of 8 or 16 bits.

    Args:
        user: "folder" if the folder has one for each user, with the folders of the classes in it; a user may lack some.
        resize: width, or width+height, to which all images are scaled; default: all must have the same size.
        colours: colours to which all images are converted; default: all must be grey, or all RGB.
        background: colour behind transparent pixels; default: no pixel may be transparent.
        classes: the class names in order, some of which may have no folder; default: the folders' names by alphabet.

    Raises:
        DataError: with the file of every mistake.
    """
    _check_pillow(path)
    root = Path(path)
    if root.is_file():
        raise DataError(f"{path} is a file, not a folder; name the one that holds a folder of images for each class")
    if not root.is_dir():
        raise DataError(f"there is no folder {path}; it must hold one folder of images for each class")
    reading = _Reading(size=_size(resize), colours=colours, background=background)
    mistakes = FileMistakes(path)
    with opening(path):
        owners = _folders(root) if user else [root]
        folders = [folder for owner in owners for folder in _folders(owner)]
    check_chosen_names(classes, mistakes)
    mistakes.stop_if_any()
    names = classes or tuple(sorted({folder.name for folder in folders}))
    if len(names) < 2:
        where = (
            f"the {len(owners)} folders in it have {len(names)} folders in them"
            if user
            else f"it has {len(names)} folders"
        )
        raise mistakes.stop("", f"{where}; there must be one for each class, two or more")
    _check_classes(root, folders, names, mistakes)
    known = sorted(
        (each for each in folders if each.name in names), key=lambda each: (each.parent, names.index(each.name))
    )
    may_be_empty = bool(classes or user)
    files = [
        (file, names.index(folder.name))
        for folder in known
        for file in _inside(root, folder, mistakes, may_be_empty=may_be_empty, users=user is not None)
    ]
    if user:
        _check_users(owners, () if classes else names, [file for file, _ in files], mistakes)
    if not files:
        mistakes.add("", f"there is no image in a folder of the classes {', '.join(names)}; put some in")
    mistakes.stop_if_any()
    found = [_read(file, file.relative_to(root).as_posix(), reading, mistakes) for file, _ in files]
    mistakes.stop_if_any()
    first = f"{files[0][0].relative_to(root)} is {_described(found[0].shape)}"
    for (file, _), image in zip(files, found, strict=True):
        if image.shape != found[0].shape:
            mistakes.add(
                str(file.relative_to(root)),
                f"it is {_described(image.shape)}, but {first}; bring them to one size with resize=..., to one kind "
                "with colours=grey or colours=rgb",
                group="size" if image.shape[0] == found[0].shape[0] else "colours",
            )
    mistakes.stop_if_any()
    y = np.array([number for _, number in files], dtype=np.int64)
    owner_names = [file.parent.parent.name for file, _ in files]
    user_N, user_names = users(owner_names, range(len(files)), "", mistakes) if user else (None, ())
    return Dataset(
        name=root.name,
        x=np.stack(found),
        y=y,
        task="classification",
        input_kind="image",
        classes=names,
        user_N=user_N,
        user_names=user_names,
        test_N=drawn_test_part(y, "classification", test_fraction),
        source=f"{path}, {described('classification', names, guessed=False)}",
    )


def read_images(
    path: str,
    shape: tuple[int, ...],
    *,
    resize: tuple[int, ...] = (),
    colours: Colours | None = None,
    background: Background | None = None,
) -> tuple[list[str], NDArray[np.float32]]:
    """Read new images for a trained model; return their names in order, and x (N, C, H, W) in [0, 1].

    Args:
        path: an image, or a folder of images, whose folders are read, too; a name begins in that folder.
        shape: (C, H, W) that the model takes.
        resize: as for `images`, in the training; `colours` and `background`, too.

    Raises:
        DataError: with the file of every mistake.
    """
    _check_pillow(path)
    root, mistakes = Path(path), FileMistakes(path)
    files = {each.relative_to(root).as_posix(): each for each in _below(root)} if root.is_dir() else {root.name: root}
    if not files:
        raise mistakes.stop("", "there is no image in this folder, nor in one inside it")
    reading = _Reading(size=_size(resize), colours=colours, background=background, adjustable=False)
    names, found = sorted(files), []
    for name in names:
        image = _read(files[name], name if root.is_dir() else "", reading, mistakes)
        if image.size and image.shape != shape:
            mistakes.add(
                name if root.is_dir() else "",
                f"it is {_described(image.shape)}, but the model takes {_described(shape)}; save it like that",
                group=image.shape,
            )
        found.append(image)
    mistakes.stop_if_any()
    return [os.fsencode(name).decode(errors="replace") for name in names], np.stack(found)  # what is no UTF-8 as U+FFFD


def _check_pillow(path: str) -> None:
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise DataError(f"{path}: reading images needs Pillow; install it with pip install fedpeer[images]") from None


def _size(resize: tuple[int, ...]) -> tuple[int, int] | None:
    if len(resize) > 2 or any(not 1 <= side <= SIDE_MAX for side in resize):
        given = "+".join(map(str, resize))
        raise DataError(f"resize={given}: write one size in pixels, or width+height, each at most {SIDE_MAX}")
    return (resize[0], resize[-1]) if resize else None


def _below(root: Path) -> list[Path]:
    """Return the files in a folder and its subfolders; hidden ones are skipped, as in the training."""

    def stop(problem: OSError) -> None:
        raise problem

    found: list[Path] = []
    with opening(str(root)):
        for folder, folders, names in os.walk(root, onerror=stop, followlinks=True):
            here = Path(folder)
            # A link to a folder that it is in would be followed again and again.
            folders[:] = [each for each in folders if not here.resolve().is_relative_to((here / each).resolve())]
            folders[:] = [each for each in folders if each[0] != "."]
            found += [here / each for each in names if each[0] != "."]
    return found


def _folders(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.is_dir() and each.name[0] != ".")


def _check_classes(root: Path, folders: Sequence[Path], names: Sequence[str], mistakes: FileMistakes) -> None:
    for folder in folders:
        if folder.name not in names:
            near = nearest_of(folder.name, names)
            hint = f'did you mean "{near}"?' if near else f"classes are {', '.join(names)}"
            mistakes.add(folder.relative_to(root).as_posix(), f"this folder is not a class; {hint}")


def _check_users(owners: Sequence[Path], guessed: Sequence[str], files: Sequence[Path], mistakes: FileMistakes) -> None:
    with_images = {file.parent.parent for file in files}
    for owner in owners:
        if owner not in with_images:
            mistakes.add(owner.name, "this user has no image in a folder of a class; put some in or remove the folder")
    for name in sorted(set(guessed) - {file.parent.name for file in files}):
        mistakes.add(
            f"*/{name}", "no user has an image of this class; put some in, remove the folders or write classes="
        )


def _inside(root: Path, folder: Path, mistakes: FileMistakes, *, may_be_empty: bool, users: bool) -> list[Path]:
    with opening(str(folder)):
        found = sorted(each for each in folder.iterdir() if each.name[0] != ".")
    place = folder.relative_to(root).as_posix()
    for each in found:
        if each.is_dir():
            way_out = f"put its images into {place} itself"
            way_out += "" if users else f", or write user=folder if {place} is a user and {each.name} a class"
            mistakes.add(f"{place}/{each.name}", f"it is a folder; {way_out}", (folder, "deeper"))
    if not found and not may_be_empty:
        mistakes.add(place, "there is no image in this folder; put some in or remove the folder")
    return found


def _read(file: Path, place: str, reading: _Reading, mistakes: FileMistakes) -> NDArray[np.float32]:
    """Read one image, (C, H, W) in [0, 1]; return an empty array after a mistake, noted at `place`."""
    import PIL.Image
    import PIL.ImageOps

    try:
        with warnings.catch_warnings(action="error", category=PIL.Image.DecompressionBombWarning):
            image: Any = PIL.Image.open(file)
            stored = image.tile[0][3] if image.format == "PNG" and image.tile else ""
            deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")
            image.load()
    except Exception as found:  # each format raises what it likes for a damaged file; AVIF a RuntimeError
        mistakes.add(place, f"it cannot be read as an image ({type(found).__name__}); repair or remove it")
        return np.empty(0, dtype=np.float32)
    with contextlib.suppress(Exception):  # a damaged note on the camera's orientation does not damage the pixels
        image = PIL.ImageOps.exif_transpose(image)
    try:
        _mend_transparent_shade(image, stored)
        shown = _grey_of(image, reading) if deep else _shown(image, reading)
    except ValueError as problem:
        mistakes.add(place, str(problem), group=str(problem))
        return np.empty(0, dtype=np.float32)
    shade = np.asarray(shown.resize(reading.size) if reading.size else shown, dtype=np.float32)
    pixels: NDArray[np.float32] = np.clip(shade / 255, 0, 1)
    if pixels.ndim == 2:
        return np.stack([pixels] * (3 if reading.colours == "rgb" else 1))
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


def _grey_of(image: Any, reading: _Reading) -> Any:
    """Return an image of 16 bits in real numbers from 0 to 255: Pillow's own conversion clips at 255.

    Raises:
        ValueError: no background is set for its transparent pixels.
    """
    import PIL.Image

    shade_HW = np.asarray(image).astype(np.float32)
    clear_HW = shade_HW == image.info.get("transparency", -1)
    if clear_HW.any() and reading.background is None:
        raise ValueError(reading.seen_through())
    return PIL.Image.fromarray(np.where(clear_HW, 255 if reading.background == "white" else 0, shade_HW / 257))


def _shown(image: Any, reading: _Reading) -> Any:
    """Return an image as a person sees it, in mode L or RGB.

    Raises:
        ValueError: it cannot be converted; the message has the way out.
    """
    import PIL.Image

    if image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits, whose white is not known; save it with 8 or 16 bits")
    colours = reading.colours
    if image.mode not in ("L", "RGB") and colours is None:
        way_out = reading.way_out("bring all to one with colours=grey or colours=rgb", "save it in one of these")
        raise ValueError(f"its pixels are {image.mode}, not grey or RGB; {way_out}")
    kept = image.mode if colours is None else {"grey": "L", "rgb": "RGB"}[colours]
    if image.mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        if image.getextrema()[3][0] < 255:
            if reading.background is None:
                raise ValueError(reading.seen_through())
            image = PIL.Image.alpha_composite(PIL.Image.new("RGBA", image.size, reading.background), image)
        image = image.convert("RGB")
    return image.convert(kept)


def _described(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    return f"{width} x {height} {'grey' if channels == 1 else 'RGB'}"
