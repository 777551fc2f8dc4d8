"""The one process that starts a lab and keeps it: builds the network, writes configurations, starts, watches, restarts.

``lab up`` starts it and follows its progress; every other command about a lab is a request on its socket. A lab
continues without it, unwatched; ``lab down`` needs no process of the lab.
"""
