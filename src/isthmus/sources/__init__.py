"""Input rows from somewhere: Kubernetes, files, Karmada. A new source is a new module here.

What belongs here: turning what a store says into rows of the model, whole rows only. What never does: joining rows of
different sources, which is what derived tables are for.
"""
