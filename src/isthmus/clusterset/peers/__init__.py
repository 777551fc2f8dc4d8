"""Peers: their files, the sessions with their etcd, what is known of each of them, and its records as rows.

peer_files             the configuration directory: one file a peer
follower, connection   sessions with each peer's etcd
gate, liveness         a peer's records as a store to follow, and its signs of life
sinks                  keys of a peer as rows, one kind of record at a time
peer_record            what is known of a peer: facts, its row, its records
peer_status            the facts, and the one function that judges by them
context                settings and stores that the connections of one follower share
cache                  the last state of each peer on disk
timings                how often a follower looks, and how long it waits
"""

from isthmus.clusterset.peers.peer_files import Directory, Peer, files, forget, names_of_files, parse, save

__all__ = ["Directory", "Peer", "files", "forget", "names_of_files", "parse", "save"]
