"""The kernel: libbpf binding, map codecs, plans → maps, attachment, kernel events.

What belongs here: everything that knows the layout of bpf/maps.h. What never does: choosing backends.

    libbpf.py        the C library, by ctypes: objects, maps, links; errors with errno and what the verifier said
    btf.py           the structs of the compiled object, as the compiler laid them out
    codecs.py        rows ↔ bytes of each map, checked against BTF
    maps.py          the maps as bytes: of the kernel, or of a dict with the same face
    installed.py     what is in the maps, as objects; restored from them; ids
    plans.py         a plan row → the changes that bring the maps there (pure)
    target.py        the reconciler's target: carries changes out, sweeps what the grace period has kept
    attach.py        load, pin, attach, detach
    alive.py         the deadline that the node's DNS server renews
    view.py          what is in the kernel, for people
    requirements.py  what this machine lacks
"""
