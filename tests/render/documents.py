"""JSON values for properties, and HTML taken apart by the standard library's parser."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import strategies as st

SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)
HOSTILE = st.lists(
    st.sampled_from(
        ["</script>", "<!--", "-->", "<script>", "]]>", "&lt;", "\u2028", "\u2029", "'", '"', "\\", "__proto__", "\x00"]
    ),
    max_size=5,
).map("".join)
JSON = st.recursive(
    SCALARS | TEXTS | HOSTILE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS | HOSTILE, inner, max_size=4),
    max_leaves=12,
)
ARGUMENTS = st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), JSON, max_size=4)


class Taken(HTMLParser):
    """A fragment as its tags with their attributes, its text, and the contents of its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.comments: list[str] = []
        self.text = ""
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data
        else:
            self.text += data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)
