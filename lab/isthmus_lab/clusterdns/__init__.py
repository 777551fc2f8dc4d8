"""The cluster's DNS for ``cluster.local``: what CoreDNS is on a real cluster; "not ours" is tested against it.

It answers for Services of its own cluster, and NXDOMAIN to everything else; no question ever leaves the lab.
"""
