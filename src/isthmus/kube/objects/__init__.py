"""Thin wire structs, a module per API group: only the fields we use; unknown fields are skipped when decoding.

Whatever a server may write as null is None here, closed sets of words are plain strings: a word of a newer server
must not cost the object. ``sources`` interprets the words.
"""
