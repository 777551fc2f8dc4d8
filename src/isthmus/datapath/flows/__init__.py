"""Flow records: sampled calls, one by one, from the kernel's ring buffer. Bytes by cluster.

What belongs here: reading records, and names for their numbers while late records may refer to them. What never does:
anything that a call depends on; records may be lost, and are then counted.

    codecs.py    structs of records and byte counters
    manifest.py  their maps
    names.py     numbers and addresses → names, also of deleted services and pods
    reader.py    the ring buffer → rows of ``isthmus.model.flows``
"""
