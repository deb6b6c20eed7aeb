#!/usr/bin/env python3
"""Checks what deploy/kubernetes/rbac.yaml and flannel-affinity.yaml say.

    deploy_manifests.py RBAC AFFINITY

The rights must be exactly those of flannel's manifest, of one service account of an own namespace, and the patch must
leave flannel's choice of nodes as it is but for the label. Prints what is wrong, and ends with 1, or "as they should be".
"""

import sys

import yaml

# The ClusterRole of flannel's Documentation/kube-flannel.yml, v0.28.9.
FLANNEL = {("", "pods"): {"get"}, ("", "nodes"): {"get", "list", "watch"}, ("", "nodes/status"): {"patch"}}
# Its DaemonSet's only term of affinity.
LINUX = {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}
OURS = {"key": "tartan.io/dataplane", "operator": "NotIn", "values": ["tartan"]}


def rights(role):
    found = {}
    for rule in role["rules"]:
        if set(rule) != {"apiGroups", "resources", "verbs"}:
            sys.exit(f"a rule of {sorted(rule)}")
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        objects = {one["kind"]: one for one in yaml.safe_load_all(file)}
    with open(sys.argv[2], encoding="utf-8") as file:
        patch = yaml.safe_load(file)
    account = {"kind": "ServiceAccount", "name": "tartan", "namespace": "tartan-system"}
    terms = patch["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    checks = {
        "the objects": (["ClusterRole", "ClusterRoleBinding", "Namespace", "ServiceAccount"], sorted(objects)),
        "the rights": (FLANNEL, rights(objects["ClusterRole"])),
        "who has them": ([account], objects["ClusterRoleBinding"]["subjects"]),
        "which": ({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                   "name": objects["ClusterRole"]["metadata"]["name"]}, objects["ClusterRoleBinding"]["roleRef"]),
        "the account": ("tartan tartan-system", " ".join(objects["ServiceAccount"]["metadata"][key]
                                                         for key in ("name", "namespace"))),
        "the namespace": ("tartan-system", objects["Namespace"]["metadata"]["name"]),
        "the affinity": ([{"matchExpressions": [LINUX, OURS]}], terms),
    }
    wrong = [f"{what}: expected {expected}, found {found}" for what, (expected, found) in checks.items() if expected != found]
    print("\n".join(wrong) or "as they should be")
    sys.exit(bool(wrong))


main()
