"""`runner config`: show, get, set, unset and document the settings.

It prints what runner.settings says; it knows no setting by name.
"""

from __future__ import annotations

from typing import Annotated

import typer

from runner.cli import completing, render
from runner.cli.app import new_app
from runner.errors import ConfigError
from runner.paths import user_paths
from runner.settings import SETTINGS, load_settings, misspelt_variables, reference, set_value, shown, unset_value
from runner.settings import setting as known_setting

app = new_app(help="Show settings, and where each value comes from.", no_args_is_help=True)

Key = Annotated[str, typer.Argument(metavar="KEY", help="The setting's name.", autocompletion=lambda: _keys())]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def _keys() -> list[str]:
    return [item.key for item in SETTINGS]


@app.command()
def show(as_json: Json = False) -> None:
    """Show every setting, its value, and where the value comes from."""
    settings = load_settings(user_paths())
    for name, meant in misspelt_variables().items():
        render.warn(f"runner does not read {name}.", hint=f"Did you mean {meant}?")
    if as_json:
        rows = [
            {
                "key": item.key,
                "value": settings.value(item.key),
                "origin": settings.origin(item.key),
                "default": item.default,
                "type": item.kind,
                "variable": item.variable,
                "help": item.help,
            }
            for item in SETTINGS
        ]
        render.emit_json("runner.config/1", {"settings": rows})
        return
    render.table(
        ("SETTING", "VALUE", "FROM"),
        [(item.key, shown(settings.value(item.key)) or "-", settings.origin(item.key)) for item in SETTINGS],
    )


@app.command()
def get(key: Key, as_json: Json = False) -> None:
    """Print one value: an empty line when nothing is set."""
    settings = load_settings(user_paths())
    value = settings.value(key)
    if as_json:
        render.emit_json("runner.config/1", {"key": key, "value": value, "origin": settings.origin(key)})
    else:
        render.data("\n".join(value) if isinstance(value, tuple) else shown(value))


@app.command("set", context_settings={"ignore_unknown_options": True})  # so that -1 is a value
def set_(
    key: Key,
    value: Annotated[
        list[str],
        typer.Argument(
            metavar="VALUE...",
            help="Several only where a setting is a list.",
            autocompletion=completing.setting_values,
        ),
    ],
) -> None:
    """Write one setting into your config.toml.

    Its comments and order are kept.
    """
    paths = user_paths()
    written = set_value(paths, key, value)
    render.narrate(f"{key} = {shown(written) or 'nothing'} in {paths.settings_file}")
    _warn_if_hidden(key, str(paths.settings_file))


@app.command()
def unset(key: Key) -> None:
    """Remove one setting from your config.toml."""
    paths = user_paths()
    if unset_value(paths, key):
        render.narrate(f"{key} is no longer in {paths.settings_file}")
    else:
        render.narrate(f"{key} was not in {paths.settings_file}")


@app.command()
def path() -> None:
    """Print where your config.toml is, whether or not it exists."""
    render.data(str(user_paths().settings_file))


@app.command("reference")
def print_reference() -> None:
    """Print the table of all settings as Markdown."""
    render.data(reference().rstrip("\n"))


def _warn_if_hidden(key: str, file: str) -> None:
    """Say so when a variable or a project's file still wins over what was just written, or a mistake elsewhere does."""
    try:
        origin = load_settings(user_paths()).origin(key)
    except ConfigError as error:
        render.warn(f"It is written, and no setting holds yet: {error.message}", hint=error.hint)
        return
    if origin != file:
        render.warn(
            f"Here, {key} still comes from {origin}.",
            hint=f"That goes before {file}; remove it there ({known_setting(key).variable} is the variable's name).",
        )
