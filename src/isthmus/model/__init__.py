"""What Isthmus knows: one row struct per table, and the names of things. Read this first.

What belongs here: immutable rows, the tables they live in, and pure functions of names. What never does: I/O, time,
logging, decisions. Rows are normalised where they are made (addresses as canonical text, sorted where order means
nothing), so that equal things are equal rows.

    addresses.py  which addresses are reserved
    names.py      service names, the derived hash, cluster names, DNS labels
    sources.py    where input rows come from, and which source is right
    services.py   input: services, endpoint sets, namespaces, nodes, pods, imports, exports
    clusters.py   input: the clusters of the clusterset, as configured and as they describe themselves
    balancing.py  derived: frontends, backends, plans
    refusals.py   derived: claims on addresses that do not count
    policies.py   input: how calls are shared out over clusters
    redirects.py  overrides: input rows, and what they come to on a node
    mcs.py        derived: merged exports, records to publish, objects wanted in the API server
    dns.py        derived: names and their answers
    exports.py    what the own cluster exports
    tables.py     every table, declared once
"""
