"""The design tokens: contrast by the WCAG formula, and the colours of highlighted code."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.render import highlight

CORE = Path(__file__).parents[2] / "gateway/serve/web/core"
TOKENS = {
    name: (light, dark)
    for name, light, dark in re.findall(
        r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", (CORE / "tokens.css").read_text()
    )
}
BACKGROUNDS = ("canvas", "surface", "raised", "sunken", "hover")
# Backgrounds of hosts in which views are shown, light and dark.
HOSTS = (("#ffffff", "#faf9f5", "#f3f3f3"), ("#181818", "#262624", "#303030"))
TINTED = {"accent": "accent-tint", "ok": "ok-tint", "warn": "warn-tint", "bad": "bad-tint", "view": "view-tint"}
SYNTAX = [name for name in TOKENS if name.startswith("syn-")]


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def too_faint(pairs: list[tuple[str, str]], minimum: float) -> list[str]:
    """The pairs of tokens (or white) whose contrast is under the minimum, in either theme."""
    found = []
    for text, background in pairs:
        for theme in (0, 1):
            one = text if text.startswith("#") else TOKENS[text][theme]
            ratio = contrast(one, TOKENS[background][theme])
            if ratio < minimum:
                found.append(f"{text} on {background}, {('light', 'dark')[theme]}: {ratio:.2f}")
    return found


def test_contrast_formula_gives_the_known_extremes() -> None:
    assert contrast("#000000", "#ffffff") == 21
    assert round(contrast("#777777", "#ffffff"), 2) == 4.48  # the well-known grey that just fails


def test_text_tokens_have_a_contrast_of_4_5_on_every_background_they_are_used_on() -> None:
    texts = ("ink", "ink-2", "ink-3", "accent", "ok", "warn", "bad", "view", *SYNTAX)
    pairs = [(text, background) for text in texts for background in BACKGROUNDS]
    pairs += TINTED.items()
    pairs += [("ink", mark) for mark in ("add-bg", "add-mark", "del-bg", "del-mark", *TINTED.values())]
    pairs += [("ink-2", background) for background in ("add-bg", "del-bg")]
    pairs += [("#ffffff", fill) for fill in ("accent-fill", "accent-press", "bad-fill")]
    assert not too_faint(pairs, 4.5)


def test_control_edges_have_a_contrast_of_3_on_every_background_at_rest() -> None:
    assert not too_faint([("control", background) for background in BACKGROUNDS if background != "hover"], 3.0)


def test_state_and_syntax_tokens_keep_5_on_the_backgrounds_of_hosts() -> None:
    names = ("ok", "warn", "bad", "view", "accent", *(name for name in SYNTAX if name != "syn-com"))
    ratios = {
        (name, background): contrast(TOKENS[name][theme], background)
        for name in names
        for theme in (0, 1)
        for background in HOSTS[theme]
    }
    assert {pair: ratio for pair, ratio in ratios.items() if ratio < 4.95} == {}


def test_tokens_that_fail_are_reported() -> None:
    assert too_faint([("line", "surface")], 3.0) == ["line on surface, light: 1.24", "line on surface, dark: 1.31"]


def test_stylesheet_colours_the_same_classes_as_the_highlighter() -> None:
    css = (CORE / "base.css").read_text()
    rules = {}
    for names, style in re.findall(
        r"^:is\(\.code, \.prose\) (?::is\()?([^{}]*?)\)? \{ ([^}]*); \}$", css, re.MULTILINE
    ):
        for name in re.findall(r"\.(hl-\w+)", names):
            rules[name] = style
    expected = {}
    for line in highlight.stylesheet("pre").splitlines():
        for name in re.findall(r"\.(hl-\w+)", line):
            expected[name] = re.search(r"\{ (.*) \}", line)[1]  # type: ignore[index]
    assert rules == expected
