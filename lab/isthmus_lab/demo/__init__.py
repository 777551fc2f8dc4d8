"""The demo's stories, each in a lab of its own. They print what they do and check each claim they make.

stage.py    what a step can do: look at the API servers, call from inside a pod, read the kernel's maps
steps.py    one export and sixty calls, a function per step; each gives a sentence, or raises StepFailed with one
failover.py where policies send calls while clusters fail, likewise
islands.py  two flat clusters and two islands, and what gateways refuse, likewise
karmada.py  an app that Karmada's own programs place, scale, move and lose, likewise
gateways.py a gateway, as a node of another cluster calls it
report.py   output, for people and for programs
run.py      a lab, the steps of a story in order, and no lab any more
"""
