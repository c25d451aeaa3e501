"""Checks a drawing from outside before it is included in a page.

An SVG inside HTML may run scripts, load files and restyle the page. So only shapes, text and their styles are allowed;
anything else rejects the whole drawing, because a part of a drawing would mislead.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

_SHAPES = {
    "path",
    "rect",
    "circle",
    "ellipse",
    "line",
    "polyline",
    "polygon",
    "text",
    "tspan",
    "marker",
    "use",
    "symbol",
}
_OTHERS = {"svg", "g", "defs", "title", "desc", "clipPath", "linearGradient", "radialGradient", "stop", "pattern"}
#: What loads a file or runs a script in a value: `image-set`, `cross-fade` and `src` take an address without `url`.
_LOADS = re.compile(
    r"url\((?!['\"]?#)|image(-set)?\(|cross-fade\(|src\(|javascript:|expression\(|@import|\\", re.IGNORECASE
)


def drawing_only(svg: str) -> str | None:
    """Return the drawing without prolog and name spaces; None if it is not XML or has more than shapes and text."""
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError:
        return None
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = {_local(name): value for name, value in element.attrib.items()}
        if element.tag not in _SHAPES | _OTHERS or not all(
            _harmless(*attribute) for attribute in element.attrib.items()
        ):
            return None
    root.tail = None
    return ElementTree.tostring(root, encoding="unicode") if root.tag == "svg" else None


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _harmless(name: str, value: str) -> bool:
    if name.lower().startswith("on"):
        return False
    if name == "href":
        return value.startswith("#")
    return _LOADS.search(value) is None
