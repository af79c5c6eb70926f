"""A download as the command line shows it: how far its files are, and in lines of their own what holds it up
and what was amiss."""

from __future__ import annotations

from runner.cli.multi_progress import FileProgress, MultiProgress
from runner.hub import FetchState, Troubles


class ShownFetch:
    """What a download is given to call with its states: they go to `progress`, without a bar if nothing is missing."""

    def __init__(self, progress: MultiProgress, *, has_bar: bool = True) -> None:
        self._progress = progress
        self._has_bar = has_bar
        self._troubles = Troubles()

    def __call__(self, state: FetchState) -> None:
        if self._has_bar:
            files = (FileProgress(file.name, file.done_bytes, file.size_bytes, file.state) for file in state.files)
            self._progress.update(files, trouble=state.trouble)
        remarks = {file.remark for file in state.files}
        for text in self._troubles.news(state):
            self._progress.say(text, is_warning=text in remarks)
