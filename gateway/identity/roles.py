"""Roles and profiles of the settings, compiled to principals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gateway.access import AccessLimits, AccessPolicy, AccessRule, ListPolicy
from gateway.config import ProfileSettings, RoleSettings
from gateway.errors import Forbidden, NotFound
from gateway.identity import ChatNames, Principal
from gateway.names import did_you_mean
from gateway.tools import Permission

# Roles that exist without being set; settings of the same name replace them.
BUILTIN_ROLES = {"admin": RoleSettings(admin=True), "user": RoleSettings()}
DEFAULT_ROLE = "user"
# Stands before the name of a permission among the restrictions of a principal; no profile has a colon in its name.
_LIMIT = "permission:"


class Roles:
    """Every role and profile by name. What each pair of them leaves is compiled once."""

    def __init__(
        self,
        roles: Mapping[str, RoleSettings],
        profiles: Mapping[str, ProfileSettings],
        chats: ChatNames | None = None,
    ) -> None:
        self.roles = {**BUILTIN_ROLES, **roles}
        self.profiles = profiles
        self._chats = chats or ChatNames()
        self._accesses: dict[tuple[str | None, frozenset[str]], AccessPolicy | None] = {}

    def make_principal(
        self, principal_id: str, role: str, profile: str | None = None, expires_at: float | None = None
    ) -> Principal:
        """Return a principal; `Forbidden` when the settings have no such role or profile any more."""
        if role not in self.roles:
            known = did_you_mean(role, self.roles) or f"; there are {', '.join(self.roles)}"
            raise Forbidden(f"there is no role {role!r} under 'roles'{known}", code="UNKNOWN_ROLE")
        if profile is not None and profile not in self.profiles:
            hint = did_you_mean(profile, self.profiles)
            raise Forbidden(f"there is no profile {profile!r} under 'profiles'{hint}", code="UNKNOWN_PROFILE")
        admin = self.roles[role].admin
        return self._apply(
            Principal(principal_id, role, admin=admin, expires_at=expires_at, chats=self._chats), profile
        )

    def narrow(self, principal: Principal, profile: str) -> Principal:
        """Return the principal under another profile; those it has already stay in force."""
        if profile not in self.profiles:
            hint = did_you_mean(profile, self.profiles)
            raise NotFound(f"there is no profile {profile!r}{hint}", code="UNKNOWN_PROFILE")
        return principal if principal.profile == profile else self._apply(principal, profile)

    def profile_access(self, profile: str | None) -> AccessPolicy | None:
        """Return what a profile leaves to somebody who may do everything."""
        return self._find_access(None, frozenset() if profile is None else frozenset({profile}))

    def limit(self, principal: Principal, permission: Permission) -> Principal:
        """Return the principal with at most this permission."""
        limited = replace(principal, restrictions=principal.restrictions | {f"{_LIMIT}{permission.value}"})
        return self._apply(limited, None)

    def _apply(self, principal: Principal, profile: str | None) -> Principal:
        names = principal.restrictions if profile is None else principal.restrictions | {profile}
        access = self._find_access(principal.role, names)
        permission = Permission.EXECUTE if access is None else access.permission
        return replace(
            principal,
            profile=profile or principal.profile,
            permission=permission,
            admin=principal.admin and permission is Permission.EXECUTE,
            access=access,
            restrictions=names,
        )

    def _find_access(self, role: str | None, profiles: frozenset[str]) -> AccessPolicy | None:
        key = role, profiles
        if key not in self._accesses:
            rules = [self._rule(name) for name in sorted(profiles)]
            limits = None
            if role is not None:
                settings = self.roles[role]
                rules.append(_role_rule(settings))
                limits = AccessLimits(**settings.limits.model_dump()) if settings.limits is not None else None
            is_limited = limits is not None or any(rule != AccessRule() for rule in rules)
            self._accesses[key] = AccessPolicy(rules, limits) if is_limited else None
        return self._accesses[key]

    def _rule(self, name: str) -> AccessRule:
        if name.startswith(_LIMIT):
            return AccessRule(Permission(name.removeprefix(_LIMIT)))
        return _profile_rule(self.profiles[name])


def _role_rule(settings: RoleSettings) -> AccessRule:
    return AccessRule(
        settings.permission,
        None if settings.categories is None else frozenset(settings.categories),
        _open(settings.tools.allow),
        tuple(settings.tools.deny),
        tuple(settings.servers) if settings.servers != ["*"] else None,
        admin=settings.admin,
    )


def _profile_rule(settings: ProfileSettings) -> AccessRule:
    tools = settings.tools
    return AccessRule(
        settings.permission,
        None,
        _open(tools.allow),
        tuple(tools.deny),
        output_schemas=settings.output_schemas,
        lists=list_policy(settings),
    )


def list_policy(settings: ProfileSettings) -> ListPolicy | None:
    """Return how a profile lists tools; None if it leaves that to `tools` of the settings."""
    if settings.mode is None and not settings.pinned and settings.description_limit is None:
        return None
    return ListPolicy(settings.mode, tuple(settings.pinned), settings.description_limit)


def _open(patterns: list[str]) -> tuple[str, ...] | None:
    """Return the patterns of an `allow` list; None for one that is empty or allows everything."""
    return tuple(patterns) if patterns and "*" not in patterns else None
