"""``isthmus verify``: calls between every pair of clusters, by pods and services made for it and removed after it.

    objects.py    what is applied in each cluster, and which calls have to work: pure functions
    clusters.py   apply, wait, call and delete, through kubectl
    programs/     what the pods run: Python's standard library only, passed on the command line

Each cluster exports a Service and a headless one that no other cluster has, so an answer shows which cluster gave it.
"""
