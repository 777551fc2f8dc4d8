"""``isthmus lab``: the command that this distribution adds to ``isthmus``, by an entry point."""
