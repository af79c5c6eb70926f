"""The model over HTTP, as OpenAI's API has it: requests wait in a line for the one engine, answers stream back.

`serve` runs it until a signal ends it. This package knows the engine's surface and its events, and no backend; where
its settings come from, and what a terminal shows of it, is the command's business.
"""

from runner.server.access import Access
from runner.server.app import Served
from runner.server.serving import Serving, bind, is_loopback, serve

__all__ = ["Access", "Served", "Serving", "bind", "is_loopback", "serve"]
