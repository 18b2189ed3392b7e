"""Functions whose annotations are text until somebody reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel

if TYPE_CHECKING:
    from decimal import Decimal


class Thing(BaseModel):
    name: str = "thing"


def add_one(by: int, thing: Thing | None = None) -> int:
    return by + 1


def add(thing: object, by: int, other: Thing | None = None) -> int:
    return by + 1


def for_type_checkers_only(price: Decimal) -> str:
    return str(price)


def question(a: Decimal) -> str:
    return f"Add to {a}?"
