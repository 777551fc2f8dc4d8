"""The tables of Isthmus, with a row struct for each, and the names of objects. Read this first.

What belongs here: immutable rows, the tables they live in, and pure functions of names. What never does: I/O, time,
logging, decisions. Rows are normalised when they are created (addresses as canonical text, sorted if order has no
meaning), so that equal objects are equal rows.

    names.py      service names, the derived hash, cluster names
    addresses.py  reserved addresses
    hosts.py      addresses and ports in text form
    chunked.py    large sorted sequences with cheap small changes
    islands.py    listeners for islands, and checks of their gateways
    sources.py    names of the sources of input rows, and their precedence
    services.py   input: services, endpoint sets, namespaces, nodes, pods, imports, exports
    pods.py       pods of the node whose calls are left alone
    identities.py input: numbers of service accounts, of every cluster
    clusters.py   input: the clusters of the clusterset, and policies for peers
    links.py      input: ClusterLinks
    policies.py   input: distribution of calls over clusters
    export_policies.py  input: callers of the own exports
    drains.py     input: clusters, nodes and services that take no new call
    redirects.py  overrides: input rows, and their effect on a node
    routes.py     input: HTTPRoutes and GRPCRoutes, and ReferenceGrants
    backend_tls.py  input: BackendTLSPolicies, and the authorities in ConfigMaps that they name
    l4_routes.py  input: TCPRoutes and UDPRoutes; derived: the ports that they apply to
    refusals.py   derived: refused claims of addresses
    balancing.py  derived: frontends, backends, plans; input: probes
    stalls.py     connections without acknowledgments; measured at a request, not in a table
    mcs.py        derived: merged exports, records to publish
    objects.py    derived: desired objects of the API server; input: observed ones
    dns.py        derived: DNS names and their answers
    signing.py    derived: whose calls are signed, towards whom, and which ports are guarded
    xds.py        derived: Envoy's resources, and refused ones
    flows.py      a call and what came of it; streamed, not in a table
    tables.py     every table, declared once
"""
