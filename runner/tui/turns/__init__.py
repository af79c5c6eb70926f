"""What a transcript shows, without a screen: turns cut into pieces, pieces as rows, and where each row is.

Only what is near the screen is parsed and wrapped; the height of the rest is estimated. It knows no widget.
"""
