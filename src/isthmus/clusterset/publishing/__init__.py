"""The own cluster's records in the own etcd.

publisher    a reconciler of the records, the heartbeat and the description
targets      rows as keys
owned_keys   key prefixes that one writer owns, and what the store has of them
"""
