"""Flags that come in groups: Typer sees each of them, and the command gets the group."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from runner.cli import explain, flag_groups, run
from runner.errors import UsageError


def test_a_command_takes_a_group_where_its_flags_stand() -> None:
    taken: list[object] = []

    @flag_groups.with_groups
    def command(
        *,
        name: Annotated[str, typer.Argument()] = "",
        load: flag_groups.Load,
        loud: Annotated[bool, typer.Option()] = False,
    ) -> None:
        """What it does."""
        taken.extend((name, load, loud))

    app = typer.Typer(add_completion=False)
    app.command()(command)
    done = CliRunner().invoke(app, ["demo", "-c", "64", "--draft-file", "a", "--draft-file", "b", "--force", "--loud"])
    assert done.exit_code == 0, done.output
    assert taken == ["demo", flag_groups.Load(ctx_size=64, draft_file=["a", "b"], force=True), True]
    assert command.__doc__ == "What it does."
    assert [*inspect.signature(command).parameters][:3] == ["name", "ctx_size", "backend"]


def test_what_was_not_given_is_left_to_the_settings() -> None:
    assert flag_groups.Sampling().given() == {}
    assert flag_groups.Sampling(temperature=0.0, stop=["a", "b"]).given() == {"temperature": 0.0, "stop": ("a", "b")}
    given = flag_groups.Load(n_gpu_layers="3", force=False).given()
    assert {name: value for name, value in given.items() if value is not None} == {"n_gpu_layers": 3}
    with pytest.raises(UsageError):
        flag_groups.Run(n_gpu_layers="some").given()


def test_an_answer_is_sampling_and_what_it_has_to_be() -> None:
    found = flag_groups.Answer(seed=3, json_schema="json").given()
    assert (found["seed"], sorted(found)) == (3, ["grammar", "seed"])
    with pytest.raises(UsageError, match="both"):
        flag_groups.Answer(json_schema="json", grammar=Path("some.gbnf")).given()


def test_explain_loads_nothing_and_so_has_no_force() -> None:
    assert "force" in inspect.signature(run.run).parameters
    assert "force" not in inspect.signature(explain.explain).parameters
