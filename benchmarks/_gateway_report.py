"""The figures as tables one can paste, and the limits they are held to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks._gateway_gates import BARE, DIRECT, Case
from benchmarks._gateway_measures import Figures

OURS, ANCHOR = "Toolgate", "SDK composition"

# Where an upstream's answer is passed on byte for byte.
RELAY = "modern → HTTP modern"

HTTP_CPU_MS, STDIO_CPU_MS, RELAY_CPU_MS = 1.3, 0.7, 0.4
P50_RATIO, RELAY_P50_RATIO = 3.0, 1.8
RATE_RATIO = 0.55
LARGE_RATIO = 1.5
LIST_CPU_MS, LIST_RATIO = 3.0, 1.2
START_RATIO = 1.3
IDLE_KB = 120.0


@dataclass(frozen=True)
class Limit:
    """One figure of ours and what it may be at most, or at least."""

    what: str
    value: float
    bound: float
    least: bool = False

    @property
    def kept(self) -> bool:
        return self.value >= self.bound if self.least else self.value <= self.bound

    def __str__(self) -> str:
        sign = "≥" if self.least else "≤"
        return f"| {self.what} | {self.value:.2f} | {sign} {self.bound:g} | {'yes' if self.kept else '**no**'} |"


@dataclass
class Report:
    """What was found so far."""

    small: dict[Case, dict[str, Figures]] = field(default_factory=dict)
    others: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_small(self, case: Case, found: dict[str, Figures]) -> None:
        self.small[case] = found
        ours, direct = found[OURS], found[DIRECT]
        relayed = case.title == RELAY
        bound = RELAY_CPU_MS if relayed else STDIO_CPU_MS if case.piped else HTTP_CPU_MS
        slower = RELAY_P50_RATIO if relayed else P50_RATIO
        self.limits += [
            Limit(f"{case.title}: CPU ms per call, 1 at a time", ours.cpu(1) * 1000, bound),
            Limit(f"{case.title}: CPU ms per call, 16 at a time", ours.cpu(16) * 1000, bound),
            Limit(f"{case.title}: p50 against direct", ours.time() / direct.time(), slower),
            Limit(
                f"{case.title}: calls/s against direct, 64 at a time", ours.rate_against(direct, 64), RATE_RATIO, True
            ),
        ]

    def add_large(self, case: Case, size: str, found: Mapping[str, Figures]) -> None:
        direct = found[DIRECT].time()
        texts = {name: _ratio(figures.time(), direct, "ms", 1000) for name, figures in found.items()}
        self.others.append((f"{size} result, p50, {case.title}", texts))
        self.others.append(
            (f"{size} result, CPU ms, {case.title}", {name: f"{each.cpu() * 1000:.1f}" for name, each in found.items()})
        )
        if size == "1 MB":
            self.limits.append(Limit(f"{case.title}: 1 MB against direct", found[OURS].time() / direct, LARGE_RATIO))

    def add_listing(self, found: Mapping[str, Figures]) -> None:
        direct = found[DIRECT].time()
        texts = {name: _ratio(each.time(), direct, "ms", 1000) for name, each in found.items()}
        self.others.append(("`tools/list` of 1,000 tools, p50", texts))
        cpu = {name: f"{each.cpu() * 1000:.1f}" for name, each in found.items()}
        self.others.append(("`tools/list` of 1,000 tools, CPU ms", cpu))
        self.limits += [
            Limit("tools/list of 1,000: CPU ms", found[OURS].cpu() * 1000, LIST_CPU_MS),
            Limit("tools/list of 1,000: p50 against one server", found[OURS].time() / direct, LIST_RATIO),
        ]

    def add_start(self, what: str, seconds: Mapping[str, float], limited: bool) -> None:
        anchor = seconds[ANCHOR]
        self.others.append((what, {name: _ratio(value, anchor, "s") for name, value in seconds.items()}))
        if limited:
            self.limits.append(Limit(f"{what}, against the composition", seconds[OURS] / anchor, START_RATIO))

    def add_memory(self, what: str, found: Mapping[str, float]) -> None:
        self.others.append((what, {name: f"{value / 1024:.0f} KB" for name, value in found.items()}))
        self.limits.append(Limit(what + ", KB", found[OURS] / 1024, IDLE_KB))

    @property
    def kept(self) -> bool:
        return all(limit.kept for limit in self.limits)

    def lines(self) -> Iterator[str]:
        yield from self._small_lines()
        yield ""
        yield from self._other_lines()
        yield ""
        yield "| limit | found | bound | kept |"
        yield "|---|--:|--:|---|"
        yield from map(str, self.limits)
        yield ""
        yield from self.notes

    def _small_lines(self) -> Iterator[str]:
        yield "| client → upstream | through | CPU ms at 1 | CPU ms at 16 | p50 | p99 | calls/s at 16 | calls/s at 64 |"
        yield "|---|---|--:|--:|--:|--:|--:|--:|"
        for case, found in self.small.items():
            direct = found[DIRECT]
            for name in _ordered(found):
                figures = found[name]
                cells = [
                    f"{figures.cpu(1) * 1000:.2f}",
                    f"{figures.cpu(16) * 1000:.2f}",
                    _ratio(figures.time(), direct.time(), "ms", 1000),
                    _ratio(figures.time(99), direct.time(99), "ms", 1000),
                    *(f"{figures.rate(width):.0f} ({figures.rate_against(direct, width):.2f}×)" for width in (16, 64)),
                ]
                yield f"| {case.title} | {name} | {' | '.join(cells)} |"

    def _other_lines(self) -> Iterator[str]:
        names = _ordered({name for _, found in self.others for name in found})
        yield f"| | {' | '.join(names)} |"
        yield "|---|" + "--:|" * len(names)
        for what, found in self.others:
            yield f"| {what} | {' | '.join(found.get(name, '–') for name in names)} |"


def _ratio(value: float, anchor: float, unit: str, scale: float = 1) -> str:
    return f"{value * scale:.2f} {unit} ({value / anchor:.2f}×)"


def _ordered(names: Mapping[str, object] | set[str]) -> Sequence[str]:
    first = [DIRECT, BARE, OURS, ANCHOR]
    return [*(name for name in first if name in names), *sorted(name for name in names if name not in first)]
