"""Text to tell apart: paragraphs of the Python language reference, and paragraphs of the library's docstrings.

Both come with Python itself: the first as `pydoc_data.topics`, the text behind `help("import")`. The task has the form
of the original's, reviews that praise or blame: sequences of less than 100 words, each of one of two classes. With
the IMDB reviews at hand, unpacked as `aclImdb`, name its folder.
"""

import pydoc_data.topics
import re
import sysconfig
from collections import Counter
from pathlib import Path

import numpy as np

PADDING, UNKNOWN = 0, 1  # words of the vocabulary are numbered from 2 on, the most frequent first
SHORTEST, LONGEST = 10, 99
BATCH_SIZE = 16
DOCSTRING = re.compile(r'^ *r?"""(.*?)"""', re.DOTALL | re.MULTILINE)


def load(vocabulary, folder=None):
    """Return three pairs (texts, labels), to train on, to validate on and to test on.

    Parameters
    ----------
    vocabulary : int
        Number of words to tell from each other.
    folder : str, optional
        `aclImdb`, with `train/pos/*.txt`, `train/neg/*.txt` and the same in `test`.

    Returns
    -------
    list of (list of ndarray, ndarray)
        The numbers of the words of each text; 0 or 1 for each text, as many of either.
    """
    classes = imdb(Path(folder)) if folder else (reference(), docstrings())
    count = min(map(len, classes))
    if not count:
        raise ValueError(
            f"got {folder}, where train/pos and train/neg have no reviews of {SHORTEST} to {LONGEST} words: "
            "name the folder aclImdb"
        )
    rng = np.random.RandomState(0)
    chosen = [(words, label) for label in (0, 1) for words in rng.permutation(sorted(classes[label]))[:count]]
    rng.shuffle(chosen)
    parts = np.cumsum([len(chosen) * 8 // 10, len(chosen) // 10])
    frequent = Counter(word for text, _ in chosen[: parts[0]] for word in text.split()).most_common(vocabulary - 2)
    numbers = {word: number for number, (word, _) in enumerate(frequent, UNKNOWN + 1)}
    texts = [np.array([numbers.get(word, UNKNOWN) for word in text.split()]) for text, _ in chosen]
    labels = np.array([label for _, label in chosen])
    bounds = [0, *parts, len(chosen)]
    return [(texts[a:b], labels[a:b]) for a, b in zip(bounds, bounds[1:])]


def reference():
    """Return the paragraphs of the language reference."""
    return {text for topic in pydoc_data.topics.topics.values() for text in paragraphs(topic)}


def docstrings():
    """Return the paragraphs of the docstrings of the standard library's modules."""
    paths = filter(Path.exists, Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py"))  # Debian's may have dead links
    sources = (path.read_text(encoding="utf-8") for path in paths)
    return {text for source in sources for docstring in DOCSTRING.findall(source) for text in paragraphs(docstring)}


def imdb(folder):
    """Return the negative and the positive reviews, as far as they are short enough."""
    return tuple(
        {text for path in folder.glob(f"*/{kind}/*.txt") for text in paragraphs(path.read_text(encoding="utf-8"))}
        for kind in ("neg", "pos")
    )


def paragraphs(text):
    """Yield the paragraphs of suitable length, as words of small letters with blanks between them."""
    for paragraph in re.split(r"\n\s*\n", text):
        words = re.findall(r"[a-z]+", paragraph.lower())
        if SHORTEST <= len(words) <= LONGEST:
            yield " ".join(words)


def batch(texts, labels, rows):
    """Return (words, mask, labels) of some texts, time first, padded to the longest of them."""
    lengths = np.array([len(texts[row]) for row in rows])
    mask = (np.arange(lengths.max())[:, None] < lengths).astype("float32")
    words = np.full(mask.shape, PADDING, "int64")
    for column, row in enumerate(rows):
        words[: lengths[column], column] = texts[row]
    return words, mask, labels[rows]


def shuffled(texts, labels, seed):
    """Yield mini-batches without end: all texts in one random order after the other."""
    rng = np.random.RandomState(seed)
    while True:
        order = rng.permutation(len(texts))
        for begin in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
            yield batch(texts, labels, order[begin : begin + BATCH_SIZE])


def in_order(texts, labels, rank=0, size=1):
    """Yield mini-batches of every text once, or of every `size`-th one from `rank` on."""
    rows = np.arange(rank, len(texts), size)
    for begin in range(0, len(rows), 4 * BATCH_SIZE):
        yield batch(texts, labels, rows[begin : begin + 4 * BATCH_SIZE])
