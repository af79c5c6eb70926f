"""Every kernel compiles for every target without a GPU, and those for decoding keep to the registers there are."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from checkout import CHECKOUT, python

from runner.errors import UsageError
from runner.kernels.compile import TARGETS, Compiled, Variant, all_variants
from runner.kernels.compile.__main__ import main
from runner.kernels.compile.compilation import overtakes_products, read_amdgcn, read_ptxas
from runner.kernels.compile.jobs import MAY_SPILL, Job, Outcome
from runner.kernels.compile.report import BEGIN, END, line, markdown, with_table
from runner.kernels.compile.spread import Failure
from runner.kernels.compile.variants import variants_of

Row = dict[str, Any]


ROWS, TTGIR = "compiled.json", "ttgir"


@pytest.fixture(scope="module", params=["fewer", pytest.param("all", marks=pytest.mark.slow)])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What came of compiling all kernels that there are, for three targets or for all: ROWS and a directory TTGIR."""
    directory = tmp_path_factory.mktemp("compiled")
    processes = max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    options = ["--jobs", str(processes), *(["--fewer"] if request.param == "fewer" else [])]
    options += ["--json", str(directory / ROWS), "--ttgir", str(directory / TTGIR)]
    done = python("-m", "runner.kernels.compile", *options)
    assert (directory / ROWS).exists(), done.stderr
    print(done.stdout)
    return directory


@pytest.fixture(scope="module")
def compiled(made: Path) -> list[Row]:
    """One row for each variant and target."""
    rows: list[Row] = json.loads((made / ROWS).read_text())["compiled"]
    return rows


def intermediate(made: Path, module: str) -> dict[str, str]:
    """The variants of a kernel file in Triton's intermediate language, by name, as one target has them.

    Lanes have the same on all of NVIDIA's: it is sm_90, or sm_120 for what is compiled for prompts.
    """
    return {
        variant.name: (made / TTGIR / f"{variant.name} for {likeliest(variant)}").read_text()
        for variant in variants_of(module)
    }


def likeliest(variant: Variant) -> str:
    """The target for which it is likeliest to fail."""
    return variant.only_target or ("sm_90" if variant.is_decode else "sm_120")


SM_90_ONLY = {"gemm_fragments", "gemm_int8", "int8_weights", "moe_int8"}
AMD = {name for name, target in TARGETS.items() if not target.is_nvidia}
NVIDIA_ONLY = {"delta_chunks", "gemv_fragments", "gemv_one_row", "lay_out", "moe_blocks", "moe_fragments"}


@pytest.fixture(scope="module")
def samples() -> dict[str, Row]:
    """What came of the sample kernels, by variant and target."""
    done = python(Path(__file__).with_name("compile_samples.py"))
    assert done.returncode == 0, done.stderr
    rows: dict[str, Row] = json.loads(done.stdout)
    return rows


def names(rows: list[Row]) -> list[str]:
    return [f"{row['variant']} for {row['target']}" for row in rows]


# --- the kernels -----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(900)
def test_every_kernel_compiles_for_its_targets(request: pytest.FixtureRequest, compiled: list[Row]) -> None:
    assert {row["module"]: row["failure"] for row in compiled if "failure" in row} == {}
    targets: dict[tuple[str, str], set[str]] = {}
    for row in compiled:
        targets.setdefault((row["module"], row["kernel"]), set()).add(row["target"])
    assert targets
    for (module, kernel), found in targets.items():
        is_nvidia_only = module in NVIDIA_ONLY
        wanted = {name for name, target in TARGETS.items() if target.is_nvidia or not is_nvidia_only}
        wanted = {"sm_90"} if module in SM_90_ONLY else wanted
        if request.node.callspec.params["made"] == "all":
            assert found == wanted, (module, kernel)
        else:
            assert found <= wanted, (module, kernel)
            assert len(found - AMD) >= min(2, len(wanted - AMD)), (module, kernel)
            assert len(found & AMD) >= min(1, len(wanted & AMD)), (module, kernel)
    assert {target for found in targets.values() for target in found} == set(TARGETS)
    assert len(set(names(compiled))) == len(compiled), "names of variants are not unique"


@pytest.mark.timeout(900)
def test_every_variant_is_compiled_where_it_is_likeliest_to_fail(compiled: list[Row]) -> None:
    found = {(row["variant"], row["target"]) for row in compiled}
    for variant in all_variants().values():
        assert (variant.name, likeliest(variant)) in found


@pytest.mark.timeout(900)
def test_no_kernel_for_decoding_spills_more_than_a_few_registers(compiled: list[Row]) -> None:
    spilling = [row for row in compiled if row["is_decode"] and row.get("spilled_bytes", 0) > MAY_SPILL]
    assert names(spilling) == []


@pytest.mark.timeout(900)
def test_every_kernel_fits_the_shared_memory_of_its_target(compiled: list[Row]) -> None:
    too_large = [row for row in compiled if row.get("shared_bytes", 0) > TARGETS[row["target"]].shared_limit]
    assert names(too_large) == []


@pytest.mark.timeout(900)
def test_no_kernel_writes_to_registers_that_tensor_cores_still_read(made: Path) -> None:
    codes = {path.name: path.read_text() for path in (made / TTGIR).iterdir()}
    assert sum("warp_group_dot" in code for code in codes.values()) > 15
    assert [name for name, code in codes.items() if overtakes_products(code)] == []


@pytest.mark.timeout(900)
def test_the_documentation_has_a_row_for_every_variant(compiled: list[Row]) -> None:
    table = (CHECKOUT / "docs" / "KERNELS.md").read_text().partition(BEGIN)[2].partition(END)[0]
    documented = {row.split("|")[1].strip() for row in table.splitlines() if row.startswith("| ")} - {"variant", "---"}
    assert documented == {row["variant"] for row in compiled}, "run: python -m runner.kernels.compile --markdown FILE"


@pytest.mark.timeout(900)
def test_what_the_instruction_multiplies_lies_in_the_lanes_that_it_wants(made: Path) -> None:
    modules = ("gemv_fragments", "gemv_one_row", "moe_blocks", "moe_fragments")
    codes = {name: code for module in modules for name, code in intermediate(made, module).items()}
    assert len(codes) > 33
    for name, code in codes.items():
        layouts = dict(re.findall(r"^(#\w+) = #ttg\.blocked<\{(.*)\}>$", code, re.MULTILINE))
        lines = code.splitlines()
        places = [i for i, line in enumerate(lines) if "mma.sync" in line]
        assert places, name
        operands = {layout for i in places for layout in re.findall(r"tensor<\d+x128x\w+, (#\w+)>", lines[i])}
        assert operands, name
        for layout in operands:  # a lane has four elements in a row, and a warp a row
            assert "sizePerThread = [1, 4], threadsPerWarp = [1, 32]" in layouts[layout], name
        # Nothing passes between lanes before the last product.
        assert not [line for line in lines[: places[-1]] if "convert_layout" in line], name


@pytest.mark.timeout(900)
def test_a_warp_of_a_prompts_product_decodes_what_it_multiplies(made: Path) -> None:
    """Four words in a row a lane, and a tile a warp; the bytes of a quad are neighbours; x lies there before."""
    codes = intermediate(made, "gemm_fragments")
    assert len(codes) > 4
    for name, code in codes.items():
        layouts = dict(re.findall(r"^(#\w+) = #ttg\.blocked<\{(.*)\}>$", code, re.MULTILINE))
        in_ptx = [text for text in code.splitlines() if "elementwise_inline_asm" in text]
        words = set(re.findall(r"tt\.load .*tensor<4x128x!tt\.ptr<i32>, (#\w+)>", code))
        quads = {layout for text in in_ptx for layout in re.findall(r"tensor<4x128x2x2xi8, (#\w+)>", text)}
        assert [layouts[layout] for layout in words] == [
            "sizePerThread = [1, 4], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [1, 0]"
        ], name
        for layout in quads:
            assert "sizePerThread = [1, 4, 2, 2], threadsPerWarp = [1, 32, 1, 1]" in layouts[layout], name
            assert "order = [3, 2, 1, 0]" in layouts[layout], name
        assert quads, name
        # Nothing of the weights passes through shared memory, and x comes while something else is multiplied.
        assert not re.search(r"local_alloc %\w+ : \(tensor<64x256xi8", code), name
        assert not re.search(r"convert_layout .*tensor<4x\w+xi32", code), name
        assert len(re.findall("async_tma_copy_global_to_local", code)) >= 2, name


@pytest.mark.timeout(900)
def test_butterflies_between_lanes_find_each_number_in_its_lane(made: Path) -> None:
    files = ("rotate", "add_parts", "moe_route", "splits", "gates")
    variants = {name: code for file in files for name, code in intermediate(made, file).items()}
    codes = {name: code for name, code in variants.items() if "shfl.sync.bfly" in code}
    assert len(codes) == 30
    for name, code in codes.items():
        layouts = dict(re.findall(r"^(#\w+) = (#ttg\..*)$", code, re.MULTILINE))
        stages = [text for text in code.splitlines() if "shfl.sync.bfly" in text]
        for layout in {layout for text in stages for layout in re.findall(r"tensor<2x128xf32, (#\w+)>", text)}:
            in_fours = "lane = [[0, 4], [0, 8], [0, 16], [0, 32], [0, 64]]", "threadsPerWarp = [1, 32]"
            assert any(lanes in layouts[layout] for lanes in in_fours), (name, layouts[layout])
        n_rows = 4 if name.startswith(("rotate_rows", "quantize_blocks")) else 1
        wanted = n_rows * [f", {1 << stage}, 31" for stage in range(len(stages) // n_rows)]
        assert [distance in text for distance, text in zip(wanted, stages, strict=True)] == [True] * len(stages), name


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("fewer_rows", "all_rows"),
    [
        ("bf16 d128 norm of heads", "bf16 d128 norm of heads M=16"),
        ("bf16 d128 norm of rows, their sums there", "bf16 d128 norm of rows, their sums there, M=16"),
        ("bf16 d256 norm of heads", "bf16 d256 norm of heads M=16"),
        ("bf16 d512, values normed, of keys", "bf16 d512, values normed, of keys, M=16"),
    ],
)
def test_heads_are_normed_in_the_same_lanes_whatever_the_number_of_rows(
    made: Path, fewer_rows: str, all_rows: str
) -> None:
    """Of 8 rows and of 16, which attention_decode._rows chooses between."""
    codes = intermediate(made, "attention_decode")

    def lanes(variant: str) -> set[str]:
        code = codes[f"attention_decode {variant}"]
        layouts = dict(re.findall(r"^(#\w+) = (#ttg\..*)$", code, re.MULTILINE))
        sums = re.findall(r"\}\) : \(tensor<(?:8|16)x(?:128|256|512)xf32, (#\w+)>\) -> ", code)  # or of their sums
        return {layouts[layout] for layout in sums}

    assert len(lanes(fewer_rows)) == 1
    assert lanes(fewer_rows) == lanes(all_rows)


# --- the compiling itself --------------------------------------------------------------------------------------------


def test_tuples_functions_and_absent_tensors_are_arguments_as_at_a_launch(samples: dict[str, Row]) -> None:
    for name in ("plain sm_90", "plain gfx1100", "biased sm_90", "biased gfx1100"):
        assert "failure" not in samples[name], samples[name]
        assert samples[name]["spilled_bytes"] == 0
        assert 16 <= samples[name]["registers"] <= 256
        assert samples[name]["size"] > 1000


def test_what_does_not_fit_into_registers_is_counted_as_spilled(samples: dict[str, Row]) -> None:
    # 512 floats a thread, on machines with 255 and 256 registers.
    for name in ("hoard sm_90", "hoard gfx1100"):
        assert samples[name]["spilled_bytes"] >= 4 * (512 - 256), samples[name]


def test_registers_that_tensor_cores_may_still_read_are_seen(samples: dict[str, Row]) -> None:
    found = {name: overtakes_products(row["ttgir"]) for name, row in samples.items() if "ttgir" in row}
    assert [name for name, is_late in found.items() if is_late] == ["overtaking sm_90"]


def test_what_does_not_compile_says_why(samples: dict[str, Row]) -> None:
    for name in ("misspelt sm_90", "misspelt gfx1100"):
        assert "float33" in samples[name]["failure"]


def test_the_program_refuses_a_name_that_nothing_has_and_tells_a_near_one() -> None:
    done = python("-m", "runner.kernels.compile", "--only", "gemv_pack")
    assert done.returncode == 2
    assert "'gemv_pack'" in done.stderr
    assert "hint: Near to it: gemv_packed" in done.stderr


def test_what_compilers_say_is_read() -> None:
    ptxas = """ptxas info    : Function properties for _kernel
    5304 bytes stack frame, 5288 bytes spill stores, 7612 bytes spill loads
ptxas info    : Used 64 registers, used 0 barriers, 5304 bytes cumulative stack size"""
    assert read_ptxas(ptxas) == (64, 5288)
    assert read_amdgcn("    .vgpr_count:     256\n    .vgpr_spill_count: 417\n") == (256, 1668)
    with pytest.raises(AssertionError, match="nothing matches"):
        read_ptxas("ptxas fatal : not this one")


# --- the report ------------------------------------------------------------------------------------------------------


def outcome(
    target: str = "sm_89", *, is_decode: bool = True, spilled: int = 0, shared: int = 2048, ttgir: str = ""
) -> Outcome:
    job = Job(module="sample", kernel="_sample", variant="sample bf16", target=target, is_decode=is_decode)
    numbers = Compiled(registers=96, spilled_bytes=spilled, shared_bytes=shared, seconds=0.5, size=9000, ttgir=ttgir)
    return Outcome(job=job, result=numbers)


def test_a_spill_is_a_complaint_about_a_kernel_for_decoding_alone() -> None:
    assert outcome(spilled=MAY_SPILL).complaint == ""
    assert outcome(spilled=84).complaint == "sample bf16 for sm_89 spills 84 bytes of registers"
    assert outcome(spilled=84, is_decode=False).complaint == ""


def test_shared_memory_is_held_against_what_the_target_has() -> None:
    assert outcome("sm_90", shared=100 * 1024).complaint == ""
    assert "takes 102400 bytes of shared memory, and there are 101376" in outcome(shared=100 * 1024).complaint


def test_a_race_with_tensor_cores_is_a_complaint(samples: dict[str, Row]) -> None:
    race = outcome("sm_90", is_decode=False, ttgir=samples["overtaking sm_90"]["ttgir"])
    assert race.complaint == "sample bf16 for sm_90 writes to registers that tensor cores may still read"


def test_a_failure_is_marked_and_named_on_one_line() -> None:
    failed = Outcome(job=outcome().job, result=Failure(reason="its process died: SIGABRT\nLLVM ERROR"))
    assert failed.complaint == "sample bf16 for sm_89 does not compile: its process died: SIGABRT\nLLVM ERROR"
    assert line(failed).split() == ["!", "sample", "bf16", "sm_89", "its", "process", "died:", "SIGABRT"]


def test_the_table_replaces_what_stood_between_its_marks() -> None:
    table = markdown([outcome(), outcome("gfx942", spilled=84)], "3.9.0")
    assert "| sample bf16 | 96 / 2 | 96 / 2 (84) |" in table
    page = f"# Kernels\n\n{BEGIN}\nold\n{END}\n\nThe rest.\n"
    written = with_table(page, table)
    assert written == f"# Kernels\n\n{BEGIN}\n\n{table}\n{END}\n\nThe rest.\n"
    assert with_table(written, table) == written
    with pytest.raises(UsageError, match="no place for the table"):
        with_table("# Kernels\n", table)


@pytest.mark.parametrize("text", [None, "# Kernels\n"])
def test_a_page_without_a_place_for_the_table_is_refused_before_anything_is_compiled(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    if text is not None:
        page.write_text(text)
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # the program takes it away
    monkeypatch.setattr(sys, "argv", ["compile", "--markdown", str(page)])
    assert main() == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "hint: " in captured.err
