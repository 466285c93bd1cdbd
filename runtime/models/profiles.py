"""Named sets of load parameters, read from `profiles.json`.

A flag overrides a profile's value; what a profile leaves out is chosen for the machine.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from attrs import field, frozen

from ...errors import BadInput

DEFAULT_PROFILE = "auto"


@frozen(kw_only=True)
class Profile:
    """A name, what it is for, and the load parameters it sets, by the names of `LoadSpec`."""

    name: str
    description: str
    values: dict[str, Any] = field(factory=dict)


@cache
def profiles() -> dict[str, Profile]:
    """Every profile by name, in the file's order."""
    text = Path(__file__).with_name("profiles.json").read_text("utf-8")
    found = {}
    for name, row in json.loads(text).items():
        description = str(row.pop("description"))
        found[name] = Profile(name=name, description=description, values=row)
    return found


def profile_named(name: str | None) -> Profile:
    """The profile of that name; None means `auto`. Raises BadInput with the names there are."""
    known = profiles()
    wanted = name or DEFAULT_PROFILE
    if wanted in known:
        return known[wanted]
    import difflib  # only a name that does not exist needs it

    close = difflib.get_close_matches(wanted, known, n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"there are {', '.join(f'`{each}`' for each in known)}"
    raise BadInput(f"there is no profile `{wanted}`", hint=hint, param="profile", available=list(known))
