"""KV selectors, one file each; every module of this folder that defines one is found here."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from essim.methods.selectors.base import RouteWork, Selector

__all__ = ["SELECTORS", "AnySelector", "RouteWork", "Selector"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

SELECTORS: dict[str, type[Selector]] = {
    str(selector.model_fields["kind"].default): selector for selector in Selector.__subclasses__()
}

if TYPE_CHECKING:
    AnySelector = Selector
else:
    AnySelector = Annotated[Union[tuple(SELECTORS.values())], Field(discriminator="kind")]  # noqa: UP007
