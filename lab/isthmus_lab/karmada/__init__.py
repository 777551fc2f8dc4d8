"""Karmada's own programs beside a lab, over a real kube-apiserver: its members are clusters that they schedule to.

What belongs here: how these programs are started, and what of a cluster they need that a lab has not. Nothing stands in
for what they do.

    plane.py        the control plane: etcd, kube-apiserver, controllers, scheduler, webhooks; members registered
    autoscaling.py  a member's horizontal pod autoscaler, and the metrics that it and Karmada's read
"""
