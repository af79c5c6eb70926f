"""The names of the styles that text is drawn in: variables of the theme, which a widget turns into colours.

"$text-muted" is not among them: Textual draws it in full contrast where it is the style of a part of a text.
"""

MUTED = "$foreground 70%"
FAINT = "$foreground 55%"  # of lines: at least 3 on every ground
LINK = "underline $text-accent"
INLINE_CODE = "$text-warning on $foreground 6%"  # the ground lets that of DRAFTED through
GROUND = "on $surface"  # of code, and of what the user said
HEADINGS = {"h1": "bold underline $text-primary", "h2": "bold $text-primary", "h3": "bold $text-secondary"}
DRAFTED = "drafted"  # what a drafter had guessed: not of the theme, but a part of the widget, which can do without
