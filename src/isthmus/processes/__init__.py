"""One module per process: agent, dns, operator, mirror, gateway; parts wired by hand, no framework."""
