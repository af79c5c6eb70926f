"""The widgets that screens are made of: each shows values that it is given, and posts messages; none knows the app."""
