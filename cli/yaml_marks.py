"""YAML 1.2 read into plain values with the line of each key; nothing is converted silently, nothing is executed.

A file is read in three steps: bytes to text (size, UTF-8); text to events (anchors, tags, directives, a second document
and deep nesting are refused); events to values (repeated keys, keys that are not text, infinities). The first two steps
stop at their problems. The third collects all of them and continues with the rest, so that one report can have these
problems and those of the settings' types. The values are plain scalars, lists and mappings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    NodeEvent,
)
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from fedpeer.config.problems import ConfigError, ConfigProblem, Path, found_text

#: Most bytes of one file. A federation of 10,000 peers with its lists of members takes half of that.
FILE_BYTES_MAX = 1024 * 1024
#: Most levels of nesting. The deepest setting is at level 5; the bound keeps recursion over values shallow.
_DEPTH_MAX = 32
#: Tags of keys that are names.
_TEXT_TAGS = (":str", ":merge", ":timestamp")
#: Where keys are names of classes, which in many tables are 0 and 1: they are taken as they are written.
_CLASSES: Path = ("learning", "class_weights")
#: Resolves and converts single plain scalars, without state between them.
_SCALARS = YAML(typ="safe", pure=True)


@dataclass
class YamlMarks:
    """Places of settings in a file, and the problems found so far.

    keys       path -> place of its key, such as "line 5:13"
    values     path -> place of its value
    """

    keys: dict[Path, str] = field(default_factory=dict)
    values: dict[Path, str] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)

    def of(self, path: Path, *, key: bool = False) -> str:
        """Return the place of a path, or of the nearest enclosing setting in the file."""
        for length in range(len(path), 0, -1):
            marks = self.keys if key or length < len(path) else self.values
            if path[:length] in marks:
                return marks[path[:length]]
        return ""


def read_yaml(file: FilePath) -> tuple[dict[str, Any], YamlMarks]:
    """Return the mapping in a file, and its marks.

    Raises:
        ConfigError: the file cannot be read or is not plain YAML. A problem of a single setting is put in
            `YamlMarks.problems` instead, and the setting is left out of the mapping.
    """
    return parse_yaml(_text(file), str(file))


def parse_yaml(text: str, name: str) -> tuple[dict[str, Any], YamlMarks]:
    """Parse a YAML text as `read_yaml` does a file; messages call it `name`."""
    reader = YAML(typ="safe", pure=True)
    try:
        refused = _refusals(reader, text)
        node = None if refused else YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}:{mark.column + 1}" if mark else ""
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(
            name, [ConfigProblem((), f"not YAML: {what}; mind brackets, quotes and indentation", place)]
        ) from None
    except YAMLError as error:
        reason = getattr(error, "reason", str(error))
        raise ConfigError(name, [ConfigProblem((), f"not YAML: {reason}; save it as plain text")]) from None
    if refused:
        raise ConfigError(name, refused)
    if node is None:
        raise ConfigError(name, [ConfigProblem((), "the file is empty; write settings as `key: value` lines")])
    if not isinstance(node, MappingNode):
        kind = "list" if isinstance(node, SequenceNode) else "single value"
        raise ConfigError(name, [ConfigProblem((), f"a {kind}, not settings; write `key: value` lines", _mark(node))])
    marks = YamlMarks()
    return _mapping(node, (), marks), marks


def scalar(text: str) -> Any:
    """Return an option's text as a plain YAML scalar: "4" is a number, "yes" is text, and so is "null"."""
    tag = _SCALARS.resolver.resolve(ScalarNode, text, (True, False))
    return text if str(tag).endswith(":null") else _value(ScalarNode(str(tag), text))


def _text(file: FilePath) -> str:
    def refuse(why: str) -> ConfigError:
        return ConfigError(str(file), [ConfigProblem((), why)])

    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise refuse("there is no such file; check the path") from None
    except IsADirectoryError:
        raise refuse("this is a folder; name the file in it") from None
    except OSError as error:
        raise refuse(f"it cannot be read ({error.strerror}); check its permissions") from None
    if len(data) > FILE_BYTES_MAX:
        raise refuse("it is larger than 1 MiB, so it is not a settings file; name the right one")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        why = f"byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise ConfigError(str(file), [ConfigProblem((), why, f"line {line}:{column}")]) from None


def _refusals(reader: YAML, text: str) -> list[ConfigProblem]:
    """Return the YAML features in a text that settings may not use, before anything is built from it."""
    found: list[ConfigProblem] = []
    depth = documents = 0
    for event in reader.parse(text):
        place = _mark(event)
        if isinstance(event, DocumentStartEvent):
            documents += 1
            if documents > 1:
                return [*found, ConfigProblem((), "a second document begins here; keep one document per file", place)]
            if event.version or event.tags:
                found.append(
                    ConfigProblem((), "directives (%YAML, %TAG) are not used here; delete the line", "line 1:1")
                )
        if isinstance(event, AliasEvent):
            found.append(ConfigProblem((), f"alias *{event.anchor}: write the value out instead", place))
        elif isinstance(event, NodeEvent) and event.anchor:
            found.append(ConfigProblem((), f"anchor &{event.anchor}: write the value out wherever it is needed", place))
        if getattr(event, "tag", None) is not None:
            found.append(ConfigProblem((), f"tag {event.tag}: settings are plain values; delete the tag", place))
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > _DEPTH_MAX:
            return [
                *found,
                ConfigProblem((), f"nested deeper than {_DEPTH_MAX} levels, as no setting is; flatten it", place),
            ]
    return found


def _mark(node: Node | Event) -> str:
    return f"line {node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _mapping(node: MappingNode, path: Path, marks: YamlMarks) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        place = _mark(key_node)
        tags = _TEXT_TAGS if path != _CLASSES else (*_TEXT_TAGS, ":int", ":float", ":bool")
        if not isinstance(key_node, ScalarNode) or not str(key_node.tag).endswith(tags):
            text = "a list or a mapping cannot name a setting; write a name"
            if isinstance(key_node, ScalarNode):
                name = found_text(key)
                text = f'{name} is not text, so it cannot name a setting; write it in quotes: "{name}"'
            marks.problems.append(ConfigProblem(path, text, place))
            continue
        here = (*path, key)
        if here in marks.keys:
            marks.problems.append(ConfigProblem(here, f"already set at {marks.keys[here]}; keep one of the two", place))
            continue
        marks.keys[here] = place
        _put(found, key, value_node, here, marks)
    return found


def _sequence(node: SequenceNode, path: Path, marks: YamlMarks) -> list[Any]:
    found: dict[int, Any] = {}
    for value_node in node.value:
        number = len(found)  # so that marks stay correct after a value that was left out
        marks.keys[*path, number] = _mark(value_node)
        _put(found, number, value_node, (*path, number), marks)
    return list(found.values())


def _put(found: dict[Any, Any], key: str | int, node: Node, path: Path, marks: YamlMarks) -> None:
    """Read one value into `found[key]`, unless no setting can have it."""
    if isinstance(node, MappingNode):
        marks.values[path] = marks.keys[path]
        found[key] = _mapping(node, path, marks)
    elif isinstance(node, SequenceNode):
        marks.values[path] = _mark(node)
        found[key] = _sequence(node, path, marks)
    elif isinstance(node, ScalarNode):
        marks.values[path] = _mark(node)
        value = _value(node)
        if isinstance(value, float) and not math.isfinite(value):
            marks.problems.append(
                ConfigProblem(path, f"found {found_text(node.value)}; write a finite number", _mark(node))
            )
        else:
            found[key] = value


def _value(node: ScalarNode) -> Any:
    kind = str(node.tag).rsplit(":", 1)[-1]
    if kind not in ("int", "float", "bool", "null"):
        return node.value
    try:
        return _SCALARS.constructor.construct_object(node)
    except ValueError:  # more digits than Python reads
        return math.inf
