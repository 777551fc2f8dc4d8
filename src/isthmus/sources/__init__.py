"""Input rows from somewhere: Kubernetes, files, Karmada. A new source is a new module here.

What belongs here: conversion of a store's objects into rows of the model, whole rows only. What never does: joining
rows of different sources, which is what derived tables are for.

Other rooms use these and nothing else (``tests/model/test_rooms.py``):

    backend_tls.Authorities   the ConfigMaps that BackendTLSPolicies name
    files.Files               a directory of YAML files as a source
    identity.cluster_name     the own cluster's name
    identity.PROPERTY         name of the ClusterProperty that has it
    kubernetes.reflectors     the API server as a source
    karmada                   what Karmada writes into a member cluster
    drains                    the objects that drain commands write
    peer_policies             what an administrator allows each peer
    links                     ClusterLinks: rows of them, and the object that a command writes
    links.Info                what a cluster publishes of itself for the links of others
    secret_files.SecretFiles  the files of a Secret, followed at the API server
    sink.TableSink            a reflector's sink into a table
"""
