"""Isthmus: a Kubernetes Service exported in one cluster, callable by name from every other one of a clusterset."""

__version__ = "0.1.0"
