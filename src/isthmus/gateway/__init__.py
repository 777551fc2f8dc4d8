"""Islands: clusters whose pods have no address elsewhere, called through their gateways.

What belongs here: the resources of a gateway's Envoy, the part of a node's Envoy that calls islands, and the identities
and trust of both. What never does: how Envoy is fed and kept running (``proxy``), which part of the calls an island has
(``loadbalancer``), and what is exported (``mcs``).

    naming.py     SNIs and identities
    tls.py        the TLS of both sides
    secrets.py    files of certificates and authorities, which Envoy watches
    exports.py    a gateway: what the own cluster exports
    http.py       both: HTTP between islands, and the header with the caller's cluster
    udp.py        both: tunnels of datagrams
    islands.py    a node: what islands export
    pods.py       a node: an address here for each pod behind a headless import
    alternatives.py a node: where calls go that no gateway takes
    refusals.py   a gateway: connections that it refused, by reason and peer
    access_log.py a gateway: how its Envoy reports them
    checks.py     what Envoy finds of gateways
"""
