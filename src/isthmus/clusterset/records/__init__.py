"""Records of the clusterset: their keys, values and bounds, in ClusterMesh's layout. Nothing here does I/O.

keys                 layout of the keys in each cluster's etcd
identity             a cluster's configuration and description, and the allocation of ids
signing              a description's key of signatures
exports, endpoints   values of both kinds of records
identities           values of identity records, in Cilium's layout
addresses            values of address records, in Cilium's layout
forms                how a record of each kind is decoded, checked and stored as rows
admission, quotas    what a peer may publish, and how much of it
refusals             what a cluster publishes about the records that it does not take
decoding             JSON with bounds
"""
