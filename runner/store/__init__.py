"""Keeps chats on this machine: `Store` is what other packages use.

chats.py has the operations, rows.py the tables, database.py the file underneath, search_text.py the matching of words.
None of them knows of engines or screens.
"""

from runner.store.chats import Deleted, Match, Store

__all__ = ["Deleted", "Match", "Store"]
