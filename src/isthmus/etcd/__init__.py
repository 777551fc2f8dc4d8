"""An etcd: session, list and watch, lease, transactions.

What belongs here: the protocol and its failure modes. What never does: key layouts and values, which are the business
of ``clusterset``.
"""
