"""``isthmus diagnose``: the path of a call, hop by hop, and at which hop and object it breaks.

    facts.py      what the processes' admin sockets have, collected once: status and tables
    hops.py       the walk from the name to the plan and its endpoints: pure functions of facts
    machines.py   descriptors, disks, conntrack, ports, clocks and versions of the processes' machines
    routes.py     routes of the Gateway API for the service, in the node's Envoy
    callers.py    callers that an exporter's node refuses by an ExportPolicy
    stalls.py     connections that get no acknowledgment, by the agents of both ends
    refusals.py   records that one cluster published and another one refuses
    reasons.py    codes and cures by the sentence that a process reports
    faults.py     what the processes have as faults: all of them, or those that concern the service
    exporters.py  the walk on: peers, exports, conflicts, namespaces, the exporter's pods

Each hop is ``ok``, a ``fault`` with its code, the object that is wrong and the command that mends it, or ``follows``:
it fails because of a fault that another hop names.
"""
