"""Names: the wire name of a tool, identifiers, and the nearest word to a misspelt one.

A public name is a key in the catalog, never a string to take apart.
"""

from __future__ import annotations

import difflib
import hashlib
import random
import re
import time
import unicodedata
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import count

SEPARATOR = "__"
WIRE_NAME_LIMIT = 64  # the strictest of the hosts and model APIs in use
_DIGEST_LENGTH = 8
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]+")
_PAIRS = "жzh хkh цts чch шsh щshch ъ ь юyu яya єye θth χch ψps ßss æae œoe þth"
_LETTERS = {
    **dict(zip("абвгдезиклмнопрстуфыэіґ", "abvgdeziklmnoprstufyeig", strict=True)),
    **dict(zip("αβγδεζηικλμνξοπρσςτυφωøłđðı", "avgdeziiklmnxoprsstyfoolddi", strict=True)),
    **{pair[0]: pair[1:] for pair in _PAIRS.split()},
}
# The sound of a letter in its Unicode name: all of it for syllables, its beginning for Arabic and Hebrew.
_SOUND = re.compile(
    r"(?:ARABIC|HEBREW) LETTER (?:FINAL )?(SH|KH|GH|TH|TS|[A-Z])[A-Z]*|HANGUL SYLLABLE ([A-Z]+)"
    r"|[A-Z]+ (?:SMALL |CAPITAL )?(?:LETTER|VOWEL SIGN) (?:SMALL )?([A-Z]{1,4})"
)
_PLAIN_CHAT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_CHAT_DIGEST = re.compile(r"x-[0-9a-f]{32}")
CHAT_LIMIT = 200


def wire_name(tool_id: str, prefix: str | None = None) -> str:
    """The name clients see: `toolset__tool` for `toolset:tool`, at most 64 of `[A-Za-z0-9_-]`.

    `prefix` replaces the part before the colon; the empty one leaves the tool's own name. A name
    that must be shortened or has foreign characters, which are transliterated, ends in a digest of
    its id, so that two ids never meet by being cleaned.
    """
    owner, colon, own = tool_id.partition(":") if ":" in tool_id else ("", "", tool_id)
    if prefix is not None:
        owner, colon = prefix, prefix
    spelled = f"{owner}{SEPARATOR}{own}" if colon else own
    cleaned = _FOREIGN.sub("_", spelled if spelled.isascii() else transliterate(spelled))
    if cleaned == spelled and 0 < len(spelled) <= WIRE_NAME_LIMIT:
        return spelled
    return with_digest(cleaned, tool_id)


def transliterate(text: str) -> str:
    """The text in Latin letters, as far as its letters have a sound that does not depend on the language."""
    return "".join(map(_transliterate, unicodedata.normalize("NFC", text)))


def _transliterate(character: str) -> str:
    parts = [part for part in unicodedata.normalize("NFKD", character) if not unicodedata.combining(part)]
    letters = "".join(part if part.isascii() else _LETTERS.get(part.lower(), part) for part in parts)
    if letters.isascii():
        return letters
    sound = _SOUND.fullmatch(unicodedata.name(character, ""))
    return character if sound is None else (sound[1] or sound[2] or sound[3]).lower()


def with_digest(name: str, tool_id: str) -> str:
    """`name`, cut to leave room for a digest of the id it stands for."""
    digest = hashlib.sha256(tool_id.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{name[: WIRE_NAME_LIMIT - _DIGEST_LENGTH - 1]}_{digest}"


def assign(wanted: Mapping[str, str], taken: Mapping[str, str]) -> dict[str, str]:
    """A public name for each tool id: `{id: name}` from `{id: wished name}`.

    A name in `taken` (`{name: id}`, what was handed out before) belongs to its id for good. An id gets the name it
    wishes for, unless that belongs to another; then the name with its digest. Among several that wish for a free name a
    builtin, then the smallest id, gets it, so the answer does not depend on the order of arrival.
    """
    owners, assigned = dict(taken), {}
    for tool_id in sorted(wanted, key=lambda tool_id: (":" in tool_id, tool_id)):
        name = wanted[tool_id]
        for attempt in count():
            if owners.setdefault(name, tool_id) == tool_id:
                break
            name = with_digest(wanted[tool_id], tool_id + ":" * attempt)
        assigned[tool_id] = name
    return assigned


def chat_directory(chat: str) -> str:
    """The folder name of a chat: the id itself when it is plain, else a digest of it.

    Upper case counts as foreign: two chats must not meet on a file system that folds case. So does what looks like a
    digest: a chat of that name would have the files of another.
    """
    if _PLAIN_CHAT.fullmatch(chat) and not _CHAT_DIGEST.fullmatch(chat):
        return chat
    return "x-" + hashlib.sha256(chat.encode("utf-8", "surrogatepass")).hexdigest()[:32]


# Characters of the end of an id that name it: random ones, while ids of one minute begin alike.
SUFFIX_LENGTH = 8


def new_id() -> str:
    """A UUIDv7: unique across processes, and sorting by it is sorting by time, to a quarter of a microsecond."""
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    # An id is no secret. `random` is seeded anew in every process; a system call here would cost a thread switch.
    moment, chance = f"{milliseconds:012x}", f"{1 << 63 | random.getrandbits(62):x}"
    return f"{moment[:8]}-{moment[8:12]}-7{rest * 4096 // 1_000_000:03x}-{chance[:4]}-{chance[4:]}"


def first_id(seconds: float) -> str:
    """The lowest id that can be made at a time, to the millisecond."""
    return str(uuid.UUID(int=(max(0, int(seconds * 1000)) & (1 << 48) - 1) << 80))


def derive_id(moment: str, text: str) -> str:
    """The UUIDv7 of something that was made at an ISO 8601 time: the same in every process."""
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest())
    milliseconds = int(datetime.fromisoformat(moment).timestamp() * 1000)
    high = milliseconds << 80 | 0x7 << 76 | (digest >> 64 & 0xFFF) << 64
    return str(uuid.UUID(int=high | 0x2 << 62 | digest & (1 << 62) - 1))


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The known word the caller most likely meant, if any is near, or the only one that begins with all of `word`."""
    known = list(words)
    parts = set(word.split("_"))

    def rank(match: str) -> float:
        # 'list_files' is rather meant to be 'find_files' than 'edit_file'.
        return difflib.SequenceMatcher(None, match, word).ratio() + 0.1 * (not parts.isdisjoint(match.split("_")))

    for match in sorted(difflib.get_close_matches(word, known, n=3, cutoff=0.6), key=rank, reverse=True):
        # Typing errors are rarely in the first letter: 'autor' is not meant to be 'category'.
        if match[:1].lower() == word[:1].lower() or difflib.SequenceMatcher(None, match, word).ratio() >= 0.7:
            return match
    longer = [each for each in known if each.startswith(f"{word}_")]
    return longer[0] if word and len(longer) == 1 else None


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """`"; did you mean 'x'?"`, or nothing when no word is near."""
    match = nearest(word, words)
    return f"; did you mean {match!r}?" if match else ""
