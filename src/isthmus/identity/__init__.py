"""Proven identities of callers: accounts → numbers, policies → who may call, keys of clusters → keys of signatures.

All of it is pure. What belongs here: decisions. What never does: Secrets, records and maps, which `processes`,
`clusterset` and `datapath` read and write.
"""
