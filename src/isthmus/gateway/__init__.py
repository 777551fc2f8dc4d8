"""Calls of islands, clusters whose pods have no address elsewhere, through their gateways.

What belongs here: the resources of a gateway's Envoy, the part of a node's Envoy that calls islands, and the identities
and trust of both. What never does: the discovery service and the process of Envoy (``proxy``), an island's share of the
calls (``loadbalancer``), and the choice of exports (``mcs``).

    naming.py     SNIs and identities
    tls.py        TLS of both sides
    secrets.py    files of certificates and authorities, which Envoy watches
    exports.py    gateway: the exports of the own cluster
    http.py       both: HTTP between islands, and the header with the caller's cluster
    udp.py        both: tunnels of datagrams
    islands.py    node: listeners for islands' services, and their gateways
    pods.py       node: an address here for each pod behind a headless import
    alternatives.py node: fallbacks when all of an island's gateways fail
    refusals.py   gateway: refused connections, by reason and peer
    access_log.py gateway: the service to which its Envoy reports them
    checks.py     Envoy's verdicts on gateways
"""
