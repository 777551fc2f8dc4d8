"""The lab's API server: a generic store of Kubernetes objects in the cluster's etcd, over HTTP.

What belongs here: what every kind shares (verbs, patches, ownership of fields, watches, tables) and, as data in
``kinds``, what differs between kinds. What never does: anything that acts on objects by itself, which is in
``lab.controllers``. It serves the demo, the tutorials and tests; it is not a second kube-apiserver.

Order of the modules: ``errors, objects, schema, shapes, jsonpath`` ← ``selectors, columns, patches, fields, defaults,
validation, protobuf`` ← ``kinds, kept, definitions`` ← ``rules, tables, storage, addresses, tokens`` ← ``api`` (the
verbs; controllers use it too) ← ``requests, replies, watching, discovery, subresources, nodes`` ← ``http, __main__``.
"""
