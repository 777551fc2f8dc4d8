"""``python -m isthmus_lab.clusterdns --kubeconfig FILE --listen ADDRESS``: started by the lab in the control plane."""

from __future__ import annotations

import argparse

from isthmus import logs
from isthmus.config import KubernetesSection
from isthmus.running import until_told
from isthmus_lab.clusterdns import server
from isthmus_lab.layout import CLUSTER_DOMAIN

parser = argparse.ArgumentParser(prog="isthmus_lab.clusterdns")
parser.add_argument("--kubeconfig", required=True)
parser.add_argument("--listen", required=True, action="append", help="address; repeatable")
parser.add_argument("--port", type=int, default=53)
parser.add_argument("--domain", default=CLUSTER_DOMAIN)
options = parser.parse_args()
logs.configure()
section = KubernetesSection(kubeconfig=options.kubeconfig)
until_told(server.run(section, hosts=options.listen, port=options.port, domain=options.domain))
