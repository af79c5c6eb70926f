"""The documents name what there is, every layer of the code, every file of kernels, every format, and no more."""

from __future__ import annotations

import re
import tomllib

from checkout import CHECKOUT

from runner.quant.formats import FORMATS
from runner.quant.mq.formats import TENSOR_FORMATS
from runner.quant.mq.recipe import RECIPES


def test_the_architecture_names_every_layer() -> None:
    contracts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    modules = {module for layer in layers for module in re.findall(r"\w+", layer)}
    assert len(modules) > 50
    page = (CHECKOUT / "docs" / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"\w+", page.partition("comma is a layer below.")[2].partition("\nOnly ")[0]))
    assert modules - named == set()


def test_the_settings_name_every_variable_that_is_read() -> None:
    sources = [path.read_text() for path in (CHECKOUT / "runner").rglob("*.py")]
    read = {name for text in sources for name in re.findall(r'environ(?:ment)?\.get\("([A-Z_]+)"', text)}
    of_runner = {
        name for name in read if name.startswith(("RUNNER_", "HF_", "TRITON_", "NO_", "FORCE_")) or "EDIT" in name
    }
    assert len(of_runner) > 8
    page = (CHECKOUT / "docs" / "SETTINGS.md").read_text()
    assert of_runner - set(re.findall(r"`(\w+)`", page)) == set()


def test_the_table_of_formats_names_all_that_quantize_writes() -> None:
    table = (CHECKOUT / "docs" / "QUANTIZATION.md").read_text().partition("## Formats")[2].partition("Bits are")[0]
    assert {*RECIPES, *TENSOR_FORMATS, *FORMATS} - set(re.findall(r"`([\w-]+)`", table)) == set()


def test_the_table_of_kernels_names_every_file() -> None:
    page = (CHECKOUT / "docs" / "KERNELS.md").read_text().partition("## Rules")[0]
    files = {path.name for path in (CHECKOUT / "runner" / "kernels").glob("*.py")} - {"__init__.py"}
    assert len(files) > 30
    assert files - set(re.findall(r"`(\w+\.py)`", page)) == set()


def test_no_picture_names_a_path_of_the_machine_that_it_was_made_on() -> None:
    pictures = list((CHECKOUT / "docs" / "images").glob("*.svg"))
    assert len(pictures) >= 4
    texts = [text for path in pictures for text in re.findall(r">([^<]+)</text>", path.read_text())]
    assert any("~/" in text for text in texts)
    assert [text for text in texts if re.search(r"(?<![\w~.:/])/\w[\w.-]*/", text)] == []
