"""Security schemes of an OpenAPI document as auth helpers, whose secrets are variables of the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.bundles.openapi.document import OpenApiDocument, UnresolvedReference
from gateway.bundles.openapi.schemas import Note
from gateway.secrets import VARIABLE, variable_name

# Parameters that are credentials: a model must not choose them. Compared with `-` as `_`.
AUTH_PARAMETERS = frozenset(
    ["authorization", "token", "access_token", "auth_token", "api_key", "apikey", "x_api_key", "x_auth_token"]
)
_KEY_RANKS = {"header": 1, "query": 4, "cookie": 5}
_KEY_NAME = re.compile(r"[A-Za-z0-9_.~-]{1,128}")
_TOKEN_URL = re.compile(r"https?://[\w.:-]+(?:/[^\s${}\\#]*)?")
_SCHEME_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


class SecuritySchemes:
    """The schemes of a document. Those that tools use are collected in `used`, their variables in `variables`."""

    def __init__(self, document: OpenApiDocument, toolset_id: str) -> None:
        self._document = document
        self._owner = variable_name(toolset_id)
        self._default = document.root.get("security")
        components = document.root.get("components")
        declared = components.get("securitySchemes") if isinstance(components, dict) else None
        self._schemes: dict[str, tuple[int, dict[str, Any]]] = {}
        self.variables: dict[str, None] = {}
        self.used: dict[str, dict[str, Any]] = {}
        self.problems: dict[str, str] = {}
        for name, scheme in declared.items() if isinstance(declared, dict) else ():
            try:
                resolved = document.resolve(scheme)
            except UnresolvedReference as error:
                self.problems[name] = str(error)
                continue
            self._add(name, resolved if isinstance(resolved, dict) else {})

    @property
    def names(self) -> list[str]:
        return list(self._schemes)

    def reference(self, name: str) -> str:
        """A `${VARIABLE}` for a credential of that name."""
        variable = f"{self._owner}_{variable_name(name)}"
        self.variables[variable] = None
        return f"${{{variable}}}"

    def choose(self, security: Any, note: Note) -> list[str]:
        """The schemes of an operation: of the alternatives it allows the one that suits a program best."""
        allowed = security if isinstance(security, list) else self._default
        alternatives = [entry for entry in allowed if isinstance(entry, dict)] if isinstance(allowed, list) else []
        possible = [entry for entry in alternatives if entry and all(name in self._schemes for name in entry)]
        if not possible:
            if alternatives and all(alternatives):
                missing = ", ".join(dict.fromkeys(name for entry in alternatives for name in entry))
                note(f"its security schemes are not supported ({missing}); add 'auth' by hand")
            return []
        best = min(possible, key=lambda entry: max(self._schemes[name][0] for name in entry))
        return [self._use(name, best[name]) for name in best]

    def _use(self, name: str, scopes: Any) -> str:
        written = _SCHEME_NAME.sub("_", name)[:64]
        helper = self.used.setdefault(written, dict(self._schemes[name][1]))
        for value in helper.values():
            if isinstance(value, str):
                self.variables |= dict.fromkeys(VARIABLE.findall(value))
        if helper["type"] == "oauth2" and isinstance(scopes, list):
            helper["scopes"] = list(dict.fromkeys([*helper.get("scopes", ()), *map(str, scopes)]))[:100]
        return written

    def _add(self, name: str, scheme: Mapping[str, Any]) -> None:
        """Convert a scheme. The number ranks it: a token is better than a password, a header better than a query."""
        kind = scheme.get("type")
        http = str(scheme.get("scheme", "")).lower()
        several = any(helper["type"] == "bearer" for _, helper in self._schemes.values())
        token = {"type": "bearer", "token": self._variable(name if several else "TOKEN")}
        if kind == "http" and http == "bearer":
            self._schemes[name] = 0, token
        elif kind == "http" and http == "basic":
            self._schemes[name] = (
                3,
                {"type": "basic", "username": self._variable("USERNAME"), "password": self._variable("PASSWORD")},
            )
        elif kind == "apiKey" and scheme.get("in") in _KEY_RANKS and _KEY_NAME.fullmatch(str(scheme.get("name"))):
            rank = _KEY_RANKS[scheme["in"]]
            key = {"type": "api_key", "name": str(scheme["name"]), "value": self._variable(name)}
            self._schemes[name] = rank, key | ({"in": scheme["in"]} if scheme["in"] != "header" else {})
        elif kind == "oauth2":
            flow = (scheme.get("flows") or {}).get("clientCredentials")
            url = flow.get("tokenUrl") if isinstance(flow, dict) else None
            if isinstance(url, str) and _TOKEN_URL.fullmatch(url):
                client = {"client_id": self._variable("CLIENT_ID"), "client_secret": self._variable("CLIENT_SECRET")}
                self._schemes[name] = 1, {"type": "oauth2", "token_url": url, **client}
            else:
                self.problems[name] = "only a person can log in; set an access token"
                self._schemes[name] = 2, token
        elif kind == "openIdConnect":
            self.problems[name] = "only a person can log in; set an access token"
            self._schemes[name] = 2, token
        else:
            self.problems[name] = f"{kind} {http}".strip() + " is not supported"

    def _variable(self, name: str) -> str:
        return f"${{{self._owner}_{variable_name(name)}}}"
