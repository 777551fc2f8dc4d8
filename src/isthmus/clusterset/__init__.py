"""What clusters tell each other: records, publisher, follower, mirror, identity and certificates.

What belongs here: key layout and values of ClusterMesh, who may say what. What never does: merging what clusters say
(``mcs``), choosing backends (``loadbalancer``).
"""
