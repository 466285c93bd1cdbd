"""How JSON is written where a schema constrains it: the same in an answer, beside tools and within a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

FREE_BLANKS = r"[\x20\x0A\x0D\x09]{0,20}"
"""Bounded: a model that is allowed endless white space writes it."""


def json_form(*, loose: bool) -> JsonCompileOptions:
    """llguidance's options for a schema; `loose` leaves the white space between tokens to the model.

    Every option that could weaken the schema is given: its own `x-guidance` would set what is left out.
    """
    return {
        "whitespace_flexible": loose,
        "whitespace_pattern": FREE_BLANKS if loose else None,
        "item_separator": "," if loose else ", ",
        "key_separator": ":" if loose else ": ",
        "lenient": False,
        "coerce_one_of": False,
    }
