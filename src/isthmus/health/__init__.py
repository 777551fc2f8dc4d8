"""Active probes: one verdict per backend. (Empty until probes are built.)"""
