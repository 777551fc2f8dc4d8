"""Multi-Cluster Services API: merge (pure), imports, derived Services, EndpointSlices, conditions."""
