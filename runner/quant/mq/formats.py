"""The weight formats of the packed models, by name. Each is defined in a file of its own kind; this is their table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from runner.quant.mq.grid import GridFormat
from runner.quant.mq.mq4_hipfire import MQ4_HIPFIRE
from runner.quant.mq.tensor_format import TensorFormat

MQ4: Final = GridFormat(name="mq4", bits=4, group_size=32, grid="table", search=(-3, 3))
MQ4_UNIFORM: Final = GridFormat(name="mq4-uniform", bits=4, group_size=32, grid="uniform", search=(-3, 3))
MQ6: Final = GridFormat(name="mq6", bits=6, group_size=32, grid="uniform", search=(-1, 4))
MQ8: Final = GridFormat(name="mq8", bits=8, group_size=32, grid="uniform", search=(-1, 4))

TENSOR_FORMATS: Final[Mapping[str, TensorFormat]] = MappingProxyType(
    {form.name: form for form in (MQ4, MQ4_UNIFORM, MQ6, MQ8, MQ4_HIPFIRE)}
)
