"""A Kubernetes API server: client, list and watch, apply, lease, events.

What belongs here: transport and thin wire objects (``objects/`` has a module per API group). What never does: rows of
the model, decisions about objects, anything of a second cluster: a client speaks to one API server.
"""
