"""The ``isthmus`` command: one module per command group."""
