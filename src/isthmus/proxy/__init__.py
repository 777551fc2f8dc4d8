"""Envoy: resources (pure: rows → xDS), ADS server, gateways. (Empty until L7 and islands are built.)"""
