"""The tables of Isthmus: one row struct for each, and how objects are named. Read this first.

What belongs here: immutable rows, the tables they live in, and pure functions of names. What never does: I/O, time,
logging, decisions. Rows are normalised where they are made (addresses as canonical text, sorted where order means
nothing), so that equal objects are equal rows.

    names.py      service names, the derived hash, cluster names
    addresses.py  which addresses are reserved
    hosts.py      addresses and ports as people write them
    chunked.py    sorted sequences that may be large, and change a little at a time
    islands.py    listeners for islands, and what is found of their gateways
    sources.py    where input rows come from, and which source comes first
    services.py   input: services, endpoint sets, namespaces, nodes, pods, imports, exports
    clusters.py   input: the clusters of the clusterset, and what is allowed to peers
    policies.py   input: how calls are shared out over clusters
    drains.py     input: what is to take no new call
    redirects.py  overrides: input rows, and what they come to on a node
    routes.py     input: HTTPRoutes and GRPCRoutes, and ReferenceGrants
    refusals.py   derived: claims on addresses that do not count
    balancing.py  derived: frontends, backends, plans; input: probes
    mcs.py        derived: merged exports, records to publish
    objects.py    derived: objects wanted in the API server; input: what it has of them
    dns.py        derived: names and their answers
    xds.py        derived: resources of Envoy, and those it refused
    flows.py      a call as it is streamed; no table
    tables.py     every table, declared once
"""
