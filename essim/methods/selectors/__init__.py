"""KV selectors, one file each; every module of this folder that defines one is found here."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from essim.errors import BadValueError
from essim.methods.selectors.base import SELECTORS, Phase, RouteWork, Selector
from essim.text.problems import shown
from essim.text.yaml import nearest_hint

__all__ = ["SELECTORS", "AnySelector", "Phase", "RouteWork", "Selector"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def _read(value: object) -> Selector:
    """Return the selector that a mapping with its ``kind`` stands for."""
    if isinstance(value, Selector):
        return value
    if not isinstance(value, dict):
        hint = f"Write {{kind: {value}, ...}}" if value in list(SELECTORS) else ""
        raise BadValueError(f"must be a mapping with a kind (got {shown(value)})", hint)
    kind = value.get("kind")
    if kind not in list(SELECTORS):
        message = "no kind is given" if kind is None else f"no kind {kind!r}"
        raise BadValueError(message, nearest_hint(str(kind), list(SELECTORS)))
    return SELECTORS[kind].model_validate(value)


class _ByKind:
    """Reads any selector there is, those too that are defined after `essim` is loaded."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(_read)

    @staticmethod
    def __get_pydantic_json_schema__(
        schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        choices = {kind: own.__pydantic_core_schema__ for kind, own in SELECTORS.items()}
        return handler(core_schema.tagged_union_schema(choices, discriminator="kind"))


if TYPE_CHECKING:
    AnySelector = Selector
else:
    AnySelector = Annotated[Selector, _ByKind]
