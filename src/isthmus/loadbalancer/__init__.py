"""Input rows → frontends, backends, plans; hashing. Pure: no I/O, no time, no logging."""
