"""How a text becomes examples: each window of characters, and the character that follows it."""

from pathlib import Path

import numpy as np

import fedpeer

#: The characters that count, in order; any other one is read as a blank. All peers need the same ones.
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
#: Characters in a window, and from the begin of one window to that of the next.
WINDOW, STEP = 32, 3


def peer_texts() -> fedpeer.Dataset:
    """Return the peers' examples: each file in texts/ is a peer."""
    return examples("texts", letters=8_000)


def common() -> fedpeer.Dataset:
    """Return the examples from which the common network learns: all files in common/."""
    return examples("common", letters=24_000)


def examples(folder: str, letters: int) -> fedpeer.Dataset:
    """Return examples of the first letters of each text; the last quarter of a text is for testing."""
    files = sorted(Path(folder).glob("*.txt"))
    parts = [windows(file.read_text(encoding="utf-8")[:letters]) for file in files]
    return fedpeer.Dataset(
        name=folder,
        x=np.concatenate([x for x, _ in parts]),
        y=np.concatenate([y for _, y in parts]),
        task="classification",
        input_kind="tokens",
        classes=tuple(CHARACTERS),
        user_N=np.repeat(np.arange(len(files)), [len(y) for _, y in parts]),
        user_names=tuple(file.stem for file in files),
        test_N=np.concatenate([np.arange(len(y)) >= 3 * len(y) // 4 for _, y in parts]),
    )


def windows(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the characters in each window, (N, WINDOW), and of those that follow, (N,)."""
    number = {letter: place for place, letter in enumerate(CHARACTERS)}
    numbers = np.array([number.get(letter, number[" "]) for letter in text], dtype=np.int64)
    begins = np.arange(0, len(numbers) - WINDOW, STEP)
    return numbers[begins[:, None] + np.arange(WINDOW)], numbers[begins + WINDOW]
