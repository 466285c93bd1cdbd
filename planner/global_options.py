"""The options every command has: how it is transported and shown, never what it does."""

from __future__ import annotations

from typing import Any, Literal

import attrs
from attrs import frozen

from .fields import option


@frozen(kw_only=True)
class GlobalOptions:
    """Options that go on either side of the subcommand; the last of repeated ones wins.

    They are not part of a plan, so they never change its id. None means "not given": the environment, the config
    file and the defaults decide then.
    """

    output: Literal["text", "json"] | None = option(None, help="How results are printed")
    dry_run: bool = option(False, help="Show what would happen as a report, and change nothing")
    ask_server: bool = option(False, help="Let a dry run ask the running server for what only it knows")
    out: str | None = option(None, help="Also save the report of a dry run to this file, for `localllm apply`")
    detailed_exitcode: bool = option(False, help="End a dry run with exit code 10 if it would change something")
    server: str | None = option(None, help="URL of the server to talk to")
    models_dir: str | None = option(None, help="Folder of the GGUF files")
    state_dir: str | None = option(None, help="Folder of keys, locks and the log")
    config: str | None = option(None, help="Config file to use instead of the usual one")
    stream: bool | None = option(None, help="Print an answer piece by piece, or only when it is complete")
    quiet: bool = option(False, help="Print results and errors only", aliases=("-q",))
    verbose: int = option(0, help="Say more on stderr; twice says still more", aliases=("-v",))

    def flags(self) -> dict[str, Any]:
        """The settings among the options, as `resolve_settings` takes them."""
        return {name: getattr(self, name) for name in ("output", "server", "models_dir", "state_dir")}


def global_fields() -> tuple[attrs.Attribute[Any], ...]:
    """The options' fields with their types resolved."""
    attrs.resolve_types(GlobalOptions)
    fields: tuple[attrs.Attribute[Any], ...] = attrs.fields(GlobalOptions)
    return fields
