"""Markdown as rows of a terminal: cut into sections while it arrives, parsed a section at a time, wrapped to a width.

Pure functions of values, so that an answer of any length costs what its last section costs. Textual's own Markdown
widget lays out every block of a text again when one changes, and keeps up with a fast model for some pages only.
"""
