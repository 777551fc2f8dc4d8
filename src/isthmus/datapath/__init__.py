"""The kernel: libbpf binding, map codecs, plans → maps, attachment, kernel events.

What belongs here: everything that knows the layout of bpf/maps.h. What never does: choosing backends.
"""
