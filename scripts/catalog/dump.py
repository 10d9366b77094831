"""Writes the prices of the installed genai_prices package in the JSON form of that project."""

import dataclasses
import datetime
import json
from decimal import Decimal

from genai_prices import types
from genai_prices.data import providers

# The fields that prices and their matching need; descriptions and extractors are left out.
PROVIDER = ("id", "name", "fallback_model_providers", "models")
MODEL = ("id", "match", "prices", "price_variants")


def members(value):
    if isinstance(value, types.ModelPrice):
        return value.__dict__.items()
    if isinstance(value, dict):
        return value.items()
    names = [field.name for field in dataclasses.fields(value)]
    kept = {types.Provider: PROVIDER, types.ModelInfo: MODEL}.get(type(value), names)
    return [(name.rstrip("_"), getattr(value, name)) for name in names if name in kept]


def text(value):
    """JSON with decimals as they stand: python's own writer would make floats of them."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, (datetime.date, datetime.time)):
        return json.dumps(value.isoformat())
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(text, value)) + "]"
    if isinstance(value, (dict, types.ModelPrice)) or dataclasses.is_dataclass(value):
        pairs = (f"{json.dumps(k)}:{text(v)}" for k, v in members(value) if v is not None)
        return "{" + ",".join(pairs) + "}"
    return json.dumps(value)


if __name__ == "__main__":
    print("[" + ",\n".join(map(text, providers)) + "]")
