"""The demo: three clusters, one export, sixty calls. It prints what it does and checks each claim it makes.

stage.py    what a step can do: look at the API servers, call from inside a pod, read the kernel's maps
steps.py    the story, a function per step; each gives a sentence, or raises StepFailed with one
report.py   output, for people and for programs
story.py    all steps, in order
caller.py   runs inside the pod
"""
