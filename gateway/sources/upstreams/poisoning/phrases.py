"""Phrases of poisoned descriptions: instructions to the model instead of a description of the tool.

Each pattern is as narrow as possible. Gaps in a pattern are bounded and do not overlap, so that searching takes time
linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from gateway.sources.upstreams.poisoning.finding import HIGH, MEDIUM, Remark, Severity, excerpt
from gateway.value import Value

_NEAR = 120


class Phrase(Value):
    """A pattern with conditions. It is searched only if a hint occurs in the text; `before` and `after` must match near
    it, and `unless` before it makes it harmless. Few hints ever occur, so a pattern is compiled when it is searched."""

    what: str
    severity: Severity
    hints: tuple[str, ...]
    pattern: str
    before: Sequence[str] = ()
    after: str | None = None
    unless: str | None = None

    def search(self, text: str, lower: str) -> re.Match[str] | None:
        """The first match in the text; `lower` is the text in lower case."""
        if not any(hint in lower for hint in self.hints):
            return None
        matches = re.finditer(self.pattern, text, re.IGNORECASE)
        return next((match for match in matches if self._fits(text, match)), None)

    def _fits(self, text: str, match: re.Match[str]) -> bool:
        before = text[max(0, match.start() - _NEAR) : match.start()]
        if not all(re.search(words, before, re.IGNORECASE) for words in self.before):
            return False
        if self.unless is not None and re.search(self.unless, before, re.IGNORECASE):
            return False
        after = re.compile(self.after or "", re.IGNORECASE)
        return after.search(text, match.end(), match.end() + _NEAR) is not None


def _phrase(
    what: str, severity: Severity, hints: str, *alternatives: str, before: Sequence[str] = (), **around: str
) -> Phrase:
    return Phrase(what, severity, tuple(hints.split("|")), "|".join(alternatives), before, **around)


_W = r"(?: [\w'`\",;:-]{1,30})"  # a word between others
_NOT = "do not|don't|dont|never|must not|mustn't|should not|shouldn't|cannot|avoid"
_PERSON = r"(?:users?|humans?|person|people|anyone|anybody|operator|owner|customer)\b"
_TOOLS = r"(?:tools?|functions?|mcp servers?|servers?|actions?)\b"
_EARLIER = "previous|prior|above|earlier|preceding|original|initial|system|safety|your|these|those"
_ORDERS = "instructions?|prompts?|directions?|directives?|system messages?"
_RULES = r"(?:rules|guidelines|guardrails|constraints|polic(?:y|ies)|restrictions|filters)\b"
_IGNORE = rf"\b(?:ignore|disregard|forget|set aside)\b{_W}{{0,3}}?"
_CONSENT = r"(?:confirmation|permission|approval|consent|authori[sz]ation)\b"
_CARRY = "send|forward|upload|copy|bcc|transmit|exfiltrate|email|post|leak|append|include|collect|attach|add"
_GIVE = f"{_CARRY}|pass|put|encode|embed|provide|insert|place|write|paste|fill|supply|set|repeat|output"
_CONVERSATION = "conversation|chat|messages?|session|prompt|dialogue"
_WHOLE = "your|full|entire|complete|whole|all|all prior|all previous|previous"
_INTO = r"\b(?:in|into|as|via|through|to|with|under|using) .{0,40}?"
_SLOT = r"(?:parameter|argument|field|request|header|call|query|url|note)\b"
_SECRETS = r"(?:passwords?|credentials|api keys?|secrets|tokens|private keys?)\b"
_EXAMPLE = r"\be\.g|\bexample|\bsuch as\b|\bfor instance\b"  # what is only an example sends nothing
_ADDRESS = r"(?:https?://|webhook\.site|ngrok|requestbin|pastebin)"
_ADDRESSES = "http|webhook|ngrok|requestbin|pastebin"
_USING = r"(?: (?:us|call|invok|runn?|execut)(?:es?|s|ing)?)?"
_FURTHER = r"(?: \w{1,20}){0,3}"

SET_ASIDE = "tells the model to set its instructions aside"
KEEP_FROM_USER = "tells the model to keep something from the user"
OWN_WORDS = "asks for the conversation or the model's own instructions"

PHRASES = (
    _phrase(
        SET_ASIDE,
        HIGH,
        "ignore|disregard|forget|set aside",
        rf"{_IGNORE} (?:all|any|other|existing|{_EARLIER}){_W}{{0,2}}? (?:{_ORDERS})\b",
        rf"{_IGNORE} (?:{_EARLIER}){_W}{{0,2}}? {_RULES}",
    ),
    _phrase(
        SET_ASIDE,
        HIGH,
        "override|bypass|supersede|circumvent",
        rf"\b(?:overrides?|bypass|supersedes?|circumvent)\b{_W}{{0,3}}? (?:previous|prior|earlier|system|safety|your)"
        rf"{_W}{{0,2}}? (?:(?:{_ORDERS})\b|{_RULES})",
    ),
    _phrase(
        SET_ASIDE,
        HIGH,
        "忽略|无视|無視|игнорируй|забудь|ignora|ignorez|ignorier|missachte|무시|instruções",
        r"(?:忽略|无视)(?:所有|之前|以上|先前|前面|一切|任何|的|你){1,4}(?:指令|指示|说明|提示|规则)",
        rf"(?:игнорируй|забудь)(?:те)?{_FURTHER} (?:инструкци|указани|правил)",
        rf"\bignor[ae]{_FURTHER} (?:instrucciones|instruções|istruzioni)",
        rf"\bignorez?{_FURTHER} (?:instructions|consignes)",
        rf"\b(?:ignoriere?n?|missachte){_FURTHER} (?:anweisungen|instruktionen|vorgaben)",
        r"(?:以前|これまで|上記)の(?:指示|命令)を無視|(?:지시|명령).{0,6}무시",
    ),
    _phrase(
        KEEP_FROM_USER,
        HIGH,
        "tell|inform|warn",
        rf"\b(?:{_NOT})(?: ever)? (?:tell|inform|warn)(?:ing)?{_W}{{0,2}}? {_PERSON}",
    ),
    _phrase(
        KEEP_FROM_USER,
        HIGH,
        "mention|reveal|disclos|discuss|acknowledg",
        rf"\b(?:{_NOT}){_W}? (?:mention|reveal|disclos|discuss|acknowledg)(?:e|ing)?{_W}{{0,2}}? "
        rf"(?:this|that|it|these|those|anything)\b(?:{_W}{{0,8}}? {_PERSON}"
        r"| (?:step|tool|instruction|note|parameter|file|call|process|operation|behaviou?r)s?\b)",
    ),
    _phrase(
        KEEP_FROM_USER,
        HIGH,
        "keep|remain|stay|hide|kept|without",
        rf"\b(?:keep|remain|stay|kept){_W}{{0,5}}? (?:secret|hidden|confidential|invisible|away) (?:from|to)"
        rf" (?:the |any |your )?{_PERSON}",
        rf"\bhide{_W}{{0,4}}? from (?:the |any |your )?{_PERSON}",
        rf"\bwithout (?:the )?{_PERSON}(?:'s)? (?:knowing|knowledge|noticing|awareness|being (?:told|aware))\b",
    ),
    _phrase(
        KEEP_FROM_USER,
        HIGH,
        "must not|must never|should not|should never|shouldn't|mustn't",
        rf"\b{_PERSON} (?:must|should)(?: not| never|n't)(?: ever)? (?:know|see|notice|be (?:told|informed|aware)"
        r"|find out|learn)\b",
    ),
    _phrase(
        KEEP_FROM_USER,
        HIGH,
        "告诉|usuario|benutzer|nutzer|utilisateur|пользовател|utente",
        r"(?:不要|别|勿)告诉(?:用户|任何人)",
        rf"\bno (?:le |se lo )?(?:digas|menciones|informes){_FURTHER} usuario",
        rf"\bsage?{_FURTHER} (?:benutzer|nutzer){_FURTHER} nicht",
        rf"\bne (?:le )?dites? (?:pas|rien){_FURTHER} (?:l')?utilisateur",
        r"\bне (?:говори|сообщай|рассказывай)(?:те)?.{0,30}пользовател",
        rf"\bnon dire{_FURTHER} (?:all')?utente",
    ),
    _phrase(
        "asks not to show or report something to the user",
        MEDIUM,
        "show|display|explain|notify|alert|share|print|describ|report|output|mention|reveal|ask",
        rf"\b(?:{_NOT}|without){_W}? (?:show|display|explain|notify|alert|shar|print|describ|report|output|mention"
        rf"|reveal|ask)(?:e|ing)?{_W}{{0,6}}? {_PERSON}",
    ),
    _phrase(
        "tells the model to act in secret",
        HIGH,
        "secretly|covertly|discreetly|stealthily|surreptitiously",
        rf"\b(?:secretly|covertly|discreetly|stealthily|surreptitiously){_W}{{0,2}}? "
        rf"(?:{_CARRY}|call|invoke|read|log|record|run|execute)\b",
    ),
    _phrase(
        "asks the model to act silently",
        MEDIUM,
        "silently|quietly",
        rf"\b(?:silently|quietly){_W}{{0,2}}? (?:{_CARRY}|call|invoke|run|execute)\b",
    ),
    _phrase(
        "puts itself before or instead of other tools",  # as honest servers do that must be signed in to first
        MEDIUM,
        "other|different|any |every |all ",
        rf"\b(?:before|prior to|after|instead of|when|whenever|each time|every time|rather than)(?: you)?{_USING}"
        rf"(?: (?:any|all|every|each))?(?: of)?(?: the)? (?:(?:other|another|different){_W}? {_TOOLS}"
        rf"|(?:any|every|all) {_TOOLS}|all others\b)",
    ),
    _phrase(
        "attaches itself to every tool call",
        MEDIUM,
        "tool call|tool use|function call|tool invocation",
        r"\b(?:before|after|with|on|in|during) (?:each|every|any|all) (?:other )?(?:tool|function)"
        r" (?:call|use|invocation)s?\b",
    ),
    _phrase(
        "speaks against other tools",
        MEDIUM,
        "tool|function|server",
        rf"\b(?:do not|don't|never) (?:use|call|trust|invoke){_W}{{0,3}}? (?:other|another|built-?in|native|original"
        rf"|official|existing|default){_W}{{0,2}}? {_TOOLS}",
        rf"\bthis (?:tool|server|function) (?:replaces|supersedes|overrides|takes (?:precedence|priority) over)"
        rf"{_W}{{0,4}}? {_TOOLS}",
    ),
    _phrase(
        "depends on which other tools there are",
        MEDIUM,
        "present|available|installed|connected|enabled",
        r"\b(?:if|when|whenever)(?: the| an?)? [a-z]\w{0,40}_\w{1,40}(?: tool| function)? (?:is|are)"
        r" (?:present|available|installed|connected|enabled)\b",
    ),
    _phrase(
        OWN_WORDS,
        HIGH,
        "prompt|history|conversation|messages|chat|dialogue|chain of thought|tools|transcript",
        rf"\b(?:{_WHOLE}|current|exact) system prompt\b|\byour chain of thought\b",
        rf"\b(?:{_WHOLE}) (?:{_CONVERSATION})(?: history| log| transcript)?\b",
        r"\b(?:names|list|descriptions?) of (?:all )?(?:the |your )?(?:other|available) tools\b",
        before=[rf"\b(?:{_GIVE})\b"],
        after=rf"{_INTO}{_SLOT}|\bsidenote\b|{_ADDRESS}",
    ),
    _phrase(
        OWN_WORDS,
        MEDIUM,
        "prompt|instructions|history|conversation|chain of thought|environment variables",
        r"\byour (?:system prompt|instructions|chain of thought)\b|\b(?:chat|conversation) history\b",
        r"\b(?:entire|whole|full) conversation\b|\b(?:all|your) environment variables\b",
        before=[rf"\b(?:{_GIVE})\b"],
    ),
    _phrase(
        "asks for keys and passwords",
        HIGH,
        "password|credential|api key|secret|token|private key",
        rf"\b(?:(?:the )?user'?s|all|any|found|available) (?:\w{{1,20}} ){{0,2}}?{_SECRETS}",
        before=[rf"\b(?:{_CARRY}|put|encode|embed|insert|paste|gather|extract|harvest)\b"],
    ),
    _phrase(
        "sends what it sees to an address",
        HIGH,
        _ADDRESSES,
        _ADDRESS,
        before=[
            rf"\b(?:{_CARRY}|report|submit|deliver|push|curl|wget|ping)\b",
            r"\b(?:conversation|history|system prompt|secrets?|credentials?|passwords?|everything|api keys?"
            r"|private keys?|environment)\b",
        ],
        unless=_EXAMPLE,
    ),
    _phrase(
        "sends results to an address",
        MEDIUM,
        _ADDRESSES,
        _ADDRESS,
        before=[
            rf"\b(?:{_CARRY}|report|push)\b",
            r"\b(?:contents?|results?|responses?|outputs?|arguments|all (?:data|files|messages))\b",
        ],
        unless=_EXAMPLE,
    ),
    _phrase(
        "an image whose address can carry data away",
        HIGH,
        "](http",
        r"!\[[^\]]{0,80}\]\(https?://[^)\s]{0,100}[?&=/][^)\s]{0,100}[{<$\[]",
    ),
    _phrase(
        "redirects messages or money",
        HIGH,
        "@|0x|bc1|+",
        r"[\w.+-]{1,64}@[\w-]{1,63}\.\w|\+\d{8}|\b0x[0-9a-f]{40}|\bbc1\w{20}",
        before=[
            r"\b(?:always|must|also|instead|regardless|every|all)\b",
            r"\b(?:sen[dt]|forward(?:ed)?|cc|bcc|cop(?:y|ied)|redirect(?:ed)?|e?mail(?:ed)?|recipients?|transfer(?:red)?"
            r"|pay(?:ments?)?)\b.{0,60}(?:\bto\b|[:=])",
        ],
        unless=_EXAMPLE,
    ),
    _phrase(
        "imitates the frame of a conversation",
        HIGH,
        "<|[inst|[/inst",
        r"<\|(?:im_start|im_end|system|user|assistant|endoftext|eot_id|start_header_id)\|>|\[/?INST\]|<</?SYS>>",
        r"</?(?:system|assistant)(?:[_-]?(?:prompt|message|reminder))?>|<(?:start|end)_of_turn>",
    ),
    _phrase(
        "imitates a frame of importance",
        MEDIUM,
        "<",
        r"<(?:important|critical|secret|hidden|instructions?|attention|urgent|mandatory)\b[^<>]{0,40}>",
    ),
    _phrase(
        "speaks with false authority",
        HIGH,
        "instruction|override|directive",
        r"\b(?:new|updated|hidden|secret) (?:system )?instructions? ?:",
        r"\b(?:system|admin(?:istrator)?|developer|security) (?:override|directive) ?:",
    ),
    _phrase(
        "gives the model another role",
        MEDIUM,
        "from now on|you are now|you are no longer|obey|pretend|jailbr|dan mode",
        r"\bfrom now on\b|\byou are now (?:an?|in|the|acting|operating|authori[sz]ed)\b|\byou are no longer\b",
        r"\byou (?:must|will|should) (?:now )?(?:obey|pretend)\b|\bjailbr(?:eak|oken)\b|\bdan mode\b",
    ),
    _phrase(
        "addresses the model",
        MEDIUM,
        "ai|llm|model|assistant|agent",
        r"\b(?:note|instructions?|message|attention|reminder)(?: \w{1,20})? (?:to|for) (?:the |any |all )?(?:ai|llm"
        r"|language model|ai assistant|assistant|model|agent)s? ?[:,]",
    ),
    _phrase(
        "tells the model not to ask",
        HIGH,
        "ask|request|wait|prompt|seek",
        rf"\b(?:do not|don't|never|no need to) (?:ask|request|wait|prompt|seek) (?:the |any )?{_PERSON} for{_W}? "
        rf"{_CONSENT}",
    ),
    _phrase(
        "claims that consent was given or is not needed",
        MEDIUM,
        "approv|consent|authori|agreed|confirmation|permission",
        r"\buser (?:has |have )?(?:already|previously|implicitly|pre-?) ?(?:approved|consented|authori[sz]ed|agreed"
        r"|given (?:permission|consent|approval))\b",
        rf"\b(?:do not|don't|never|no need to) (?:ask|request|wait|prompt|seek)(?: \w{{1,20}})? (?:for )?{_CONSENT}",
    ),
)


_CONTEXT = 160


class OtherTools:
    """The tools of other servers, which a description should not mention.

    Only names that are no ordinary words count: with `_`, `-`, a digit or a capital inside.
    """

    def __init__(self, own: Collection[str] = (), others: Collection[str] = ()) -> None:
        mine = set(own)
        self._names = {name for name in others if name not in mine and _DISTINCTIVE_NAME.search(name)}

    def find(self, text: str) -> Iterator[re.Match[str]]:
        if self._names:
            yield from (match for match in _TOKEN.finditer(text) if match[0] in self._names)


def find_instructions(text: str, other_tools: OtherTools) -> Iterator[Remark]:
    """Find instructions to the model in a folded text."""
    lower = text.lower()
    for phrase in PHRASES:
        if match := phrase.search(text, lower):
            yield Remark(phrase.what, excerpt(text, match.start(), match.end()), phrase.severity)
    yield from _find_secret_places(text)
    yield from _find_shadowing(text, other_tools)


def _find_secret_places(text: str) -> Iterator[Remark]:
    """Find mentions of places where secrets are stored; instructions to fetch them are more severe."""
    for number, match in enumerate(_SECRET_PLACE.finditer(text)):
        before = text[max(0, match.start() - 80) : match.start()]
        around = text[max(0, match.start() - _CONTEXT) : match.end() + _CONTEXT]
        if _FETCH.search(before) and _TO_THE_MODEL.search(around):
            yield Remark("tells the model to fetch secrets", excerpt(text, match.start() - 30, match.end()), HIGH)
            return
        if number == 0:
            yield Remark("speaks of a place where secrets are kept", excerpt(text, match.start(), match.end()), MEDIUM)


def _find_shadowing(text: str, other_tools: OtherTools) -> Iterator[Remark]:
    for number, match in enumerate(other_tools.find(text)):
        around = text[max(0, match.start() - _CONTEXT) : match.end() + _CONTEXT]
        if _DIRECTIVE.search(around):
            yield Remark("gives orders about another server's tool", excerpt(text, match.start(), match.end()), HIGH)
            return
        if number == 0:
            yield Remark("names another server's tool", excerpt(text, match.start(), match.end()), MEDIUM)


_DISTINCTIVE_NAME = re.compile(r"[A-Za-z0-9][_-][A-Za-z0-9]|[a-z][A-Z]|[A-Za-z][0-9]")
_TOKEN = re.compile(r"(?<![\w-])[A-Za-z][\w-]{3,127}")

_SECRET_PLACE = re.compile(
    r"(?<![\w.])\.(?:ssh|aws|gnupg|kube|azure|netrc|npmrc|pypirc|git-credentials|(?:bash|zsh)_history)\b"
    r"|(?<![\w.\])}])\.env(?:\.[a-z]{1,12})?(?![\w(-])|\.cursor/mcp|\bmcp\.json\b|claude_desktop_config"
    r"|\bid_(?:rsa|ed25519|ecdsa)\b|\bauthorized_keys\b|/etc/(?:passwd|shadow|sudoers)|\bwallet\.dat\b"
    r"|\bcredentials\.json\b|\bssh (?:private )?keys?\b|\bseed phrase|\bkeychain\b|\bsaved passwords\b",
    re.IGNORECASE,
)
_FETCH = re.compile(
    r"\b(?:read|open|cat|load|get|fetch|include|send|copy|attach|upload|pass|access|retrieve|provide|extract|print|dump"
    r"|list|find|collect|grab|append|check|look (?:at|in|into|up|for)|contents? of|exfiltrate|steal)\b",
    re.IGNORECASE,
)
_TO_THE_MODEL = re.compile(
    r"\b(?:you|must|always|first|please|important|before|sidenote|otherwise|include (?:its|their|the content)|append"
    r"|send|upload|exfiltrate|pass (?:its|the|their|it|them)|so that"
    r"|as (?:the|a|an) .{0,30}(?:parameter|argument|field|value|note|context))\b",
    re.IGNORECASE,
)
_DIRECTIVE = re.compile(
    r"\b(?:instead|must|always|never|do not|don't|before|after|first|replaces?|replaced|deprecated|broken|rather than"
    r"|redirect|bcc|recipients?|when|whenever|every time|modify|change|unsafe|insecure|compromised)\b",
    re.IGNORECASE,
)
