"""Names (pure: rows → answers), the node's server."""
