"""Mechanisms that every feature of the datapath uses: libbpf, maps as bytes, struct codecs, attachment.

What belongs here: mechanisms of the kernel. What never does: a map or a program of a feature; those are rows of
``isthmus.datapath.manifest``.

    libbpf.py        the C library, by ctypes: objects, maps, links; errors with errno and the verifier's last lines
    btf.py           the structs of the compiled object, as the compiler laid them out
    shapes.py        struct codecs, and how addresses, ports and names are written
    manifest.py      a row of the manifest: a map or a program and its properties
    maps.py          the maps as bytes: of the kernel, or of a dict with the same interface
    clock.py         the kernel's timestamps as Unix times
    ids.py           ids of entries in the maps
    attach.py        load, pin, attach, detach
    requirements.py  what this machine lacks
    errors.py        errors of the datapath as a whole
"""
