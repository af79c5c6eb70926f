"""Downloads and quantizations beside the chat: a queue of child processes, each of them the command line itself.

It knows nothing of screens: it posts what its jobs are whenever one of them changes.
"""

from runner.tui.jobs.job import Job, JobKind, JobState
from runner.tui.jobs.queue import JobQueue

__all__ = ["Job", "JobKind", "JobQueue", "JobState"]
