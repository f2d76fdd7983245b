"""Is this text one that was there before, word for word or nearly?

Word for word means: equal after Unicode compatibility folding, case folding and dropping all but letters and digits.
Nearly means that the sets of word triples overlap (Jaccard) by at least a given share, estimated by min-hashing: for
each of 64 hash functions the smallest value over a text's triples is the same in two texts with just that probability.
Only texts that agree in a whole band of signature values are compared (Broder 1997; bands as in Leskovec et al., Mining
of Massive Datasets, chapter 3), so a million texts are no trouble.
"""

from __future__ import annotations

import re
import unicodedata
import zlib

import numpy as np

HASHES, BAND = 64, 4
PRIME = (1 << 31) - 1


class Seen:
    """Texts so far; `add` takes one in unless it is a duplicate."""

    def __init__(self, similarity: float) -> None:
        random = np.random.default_rng(0)
        self._a = random.integers(1, PRIME, HASHES, dtype=np.uint64)[:, None]
        self._b = random.integers(0, PRIME, HASHES, dtype=np.uint64)[:, None]
        self._similarity = similarity
        self._exact: set[str] = set()
        self._bands: dict[tuple[int, bytes], list[int]] = {}
        self._signatures: list[np.ndarray] = []

    def add(self, text: str) -> bool:
        """Take `text` in; `False` when it, or nearly it, was there."""
        words = words_of(text)
        exact = " ".join(words)
        if exact in self._exact:
            return False
        signature = self._signature(words)
        bands = [(n, signature[n : n + BAND].tobytes()) for n in range(0, HASHES, BAND)]
        near = {m for band in bands for m in self._bands.get(band, ())}
        if any(float((self._signatures[m] == signature).mean()) >= self._similarity for m in near):
            return False
        for band in bands:
            self._bands.setdefault(band, []).append(len(self._signatures))
        self._signatures.append(signature)
        self._exact.add(exact)
        return True

    def _signature(self, words: list[str]) -> np.ndarray:
        triples = {" ".join(words[n : n + 3]) for n in range(max(1, len(words) - 2))}
        hashes = np.array([zlib.crc32(t.encode()) % PRIME for t in triples], dtype=np.uint64)
        return ((self._a * hashes + self._b) % PRIME).min(axis=1)


def words_of(text: str) -> list[str]:
    """The words of `text`, folded."""
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())
