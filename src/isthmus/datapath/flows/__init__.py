"""Flow records: sampled calls, one by one, from the kernel's ring buffer to people. Bytes by cluster.

What belongs here: reading records, and names for their numbers as long as these may still come. What never does:
anything that a call depends on; records may be lost, and are then counted.

    codecs.py    structs of records and byte counters
    manifest.py  their maps
    names.py     numbers and addresses → names, also of what has gone
    reader.py    the ring buffer → rows of ``isthmus.model.flows``
"""
