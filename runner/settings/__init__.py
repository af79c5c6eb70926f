"""The user's settings: what they are, where each value comes from, and how they are changed.

flag > RUNNER_* variable > project file (the nearest runner.toml) > user file (config.toml) > the model's own (sampling
only) > default. RUNNER_* variables are read here and, for RUNNER_HOME, in paths.py. This package knows what a value may
be, not what it does.
"""

from runner.settings.edit import set_meant, set_value, unset_value
from runner.settings.files import PROJECT_FILE, project_file, read_file
from runner.settings.load import Settings, load_settings
from runner.settings.table import SETTINGS, Setting, reference, setting, shown
from runner.settings.variables import misspelt_variables

__all__ = [
    "PROJECT_FILE",
    "SETTINGS",
    "Setting",
    "Settings",
    "load_settings",
    "misspelt_variables",
    "project_file",
    "read_file",
    "reference",
    "set_meant",
    "set_value",
    "setting",
    "shown",
    "unset_value",
]
