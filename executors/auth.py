"""`localllm auth …`: whether the server asks for an API key, and the one key there is."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any

from ..planner.report import Facts
from .events import Result
from .keys import forget_keys, make_key, read_keys, store_key
from .preconditions import keys_precondition
from .preview import previewed
from .state import keys_file

if TYPE_CHECKING:
    from ..planner.plans.auth import AuthDisable, AuthEnable, AuthStatus
    from .context import Context
    from .events import Events

NOTE = "keep it: it is not shown again; clients send it as `Authorization: Bearer KEY`, localllm reads LOCALLLM_API_KEY"


def preview_enable(_plan: AuthEnable, ctx: Context) -> Facts:
    """A key is made in any case; one that is there stops working."""
    enabled = bool(read_keys(ctx.settings.state_dir))
    return Facts(
        effects=("create", "update"),
        resolved={"keys_file": str(keys_file(ctx.settings.state_dir))},
        unknown=("the key, which is made when the plan runs",),
        preconditions=(keys_precondition(ctx.settings.state_dir),),
        warnings=("the key in use stops working",) if enabled else (),
        diff={"before": {"enabled": enabled}, "after": {"enabled": True}},
    )


@previewed(preview_enable)
async def enable(_plan: AuthEnable, ctx: Context) -> Events:
    """Make a key, keep its hash, show it this once. A running server asks for it from its next request on."""
    replaced = bool(read_keys(ctx.settings.state_dir))
    key = make_key()
    store_key(ctx.settings.state_dir, key)
    yield Result(data={"enabled": True, "key": key, "replaced": replaced, "note": NOTE})


def preview_disable(_plan: AuthDisable, ctx: Context) -> Facts:
    """Nothing to do where auth is off."""
    enabled = keys_file(ctx.settings.state_dir).exists()
    return Facts(
        effects=("delete", "update") if enabled else ("read",),
        resolved={"keys_file": str(keys_file(ctx.settings.state_dir))},
        preconditions=(keys_precondition(ctx.settings.state_dir),),
        diff={"before": {"enabled": enabled}, "after": {"enabled": False}},
    )


@previewed(preview_disable)
async def disable(_plan: AuthDisable, ctx: Context) -> Events:
    """Forget the key; also mends a damaged keys file."""
    yield Result(data={"enabled": False, "changed": forget_keys(ctx.settings.state_dir)})


def preview_status(_plan: AuthStatus, ctx: Context) -> Facts:
    """Reading the keys file is all there is."""
    return Facts(effects=("read",), resolved={"enabled": bool(read_keys(ctx.settings.state_dir))})


@previewed(preview_status)
async def auth_status(_plan: AuthStatus, ctx: Context) -> Events:
    """Whether a key is asked for, since when, and whether this client has one to send."""
    entries = read_keys(ctx.settings.state_dir)
    data: dict[str, Any] = {"enabled": bool(entries), "keys": len(entries)}
    if entries:
        data["created"] = entries[0].get("created")
        data["private"] = not stat.S_IMODE(keys_file(ctx.settings.state_dir).stat().st_mode) & 0o077
    if not ctx.on_server:
        data["client_has_key"] = ctx.settings.api_key is not None
    yield Result(data=data)
