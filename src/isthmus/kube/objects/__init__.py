"""Thin wire structs, a module per API group: only the fields we use; unknown fields are skipped when decoding."""
