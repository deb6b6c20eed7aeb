#!/usr/bin/env python3
"""Checks what deploy/kubernetes deploys, and that the Helm chart says the same.

    deploy_manifests.py manifests DEPLOY RESOURCES REMOVE CHART VERSION
        what `kubectl kustomize` printed of DEPLOY and of DEPLOY/remove, and `helm template` of the chart
    deploy_manifests.py values RESOURCES
        prints network and format, image, directories, namespace, minReadySeconds and the probe's port

The account must have exactly the rights of flannel's manifest; the pods must have the rights that they need and no
others, and mount what the agent works on. Prints what is wrong, and ends with 1, or "as they should be".
"""

import json
import re
import sys
from pathlib import Path

import yaml

wrong = []
# The ClusterRole of flannel's Documentation/kube-flannel.yml, v0.28.9.
FLANNEL = [("pods", "get"), ("nodes", "get list watch"), ("nodes/status", "patch")]
PLUGIN = {"/opt/cni/bin": "/opt/cni/bin", "/etc/cni/net.d": "/etc/cni/net.d"}


def equal(what, expected, found):
    if expected != found:
        wrong.append(f"{what}: expected {expected}, found {found}")


def read(file):
    documents = yaml.safe_load_all(Path(file).read_text(encoding="utf-8"))
    return {f"{document['kind']} {document['metadata']['name']}": document for document in documents if document}


def pod_of(daemonset):
    return daemonset["spec"]["template"]["spec"]


def container(daemonset, name, image, added, mounted):
    """One of them, which has no more rights than these, and each directory of the host's where it should be."""
    pod = pod_of(daemonset)
    entry = next(one for one in pod.get("initContainers", []) + pod["containers"] if one["name"] == name)
    rights = entry["securityContext"]
    equal(f"image and rights of {name}", (image, None, False, True, ["ALL"], added),
          (entry["image"], rights.get("privileged"), rights["allowPrivilegeEscalation"],
           rights["readOnlyRootFilesystem"], rights["capabilities"]["drop"], rights["capabilities"].get("add")))
    # A directory of the host, the configuration, or None: a directory of the pod's own.
    volumes = {one["name"]: one.get("hostPath", {}).get("path") or ("configMap" if "configMap" in one else None)
               for one in pod["volumes"]}
    equal(f"mounts of {name}", mounted, {one["mountPath"]: volumes[one["name"]] for one in entry["volumeMounts"]})
    return entry


def account(objects):
    rights = [{"apiGroups": [""], "resources": [what], "verbs": verbs.split()} for what, verbs in FLANNEL]
    equal("the rights", rights, objects["ClusterRole tartan"]["rules"])
    binding = objects["ClusterRoleBinding tartan"]
    ours = {"name": "tartan", "namespace": "tartan-system"}
    equal("who has them", [{"kind": "ServiceAccount"} | ours], binding["subjects"])
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tartan"}
    equal("which", role, binding["roleRef"])
    equal("the account's namespace", "tartan-system", objects["ServiceAccount tartan"]["metadata"]["namespace"])
    equal("the namespace's level", "privileged",
          objects["Namespace tartan-system"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"])


def workload(objects, image):
    equal("the objects", ["ClusterRole tartan", "ClusterRoleBinding tartan", "ConfigMap tartan-cfg", "DaemonSet tartan",
                          "Namespace tartan-system", "ServiceAccount tartan"], sorted(objects))
    daemonset = objects["DaemonSet tartan"]
    pod = pod_of(daemonset)
    # Their network alone, of what the host's pods can share.
    expected = {"hostNetwork": True, "hostPID": None, "hostIPC": None, "serviceAccountName": "tartan",
                "automountServiceAccountToken": True, "priorityClassName": "system-node-critical",
                "tolerations": [{"operator": "Exists"}]}
    equal("the pods", expected, {key: pod.get(key) for key in expected})
    equal("the update, and seconds between two nodes",
          ({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}, 5),
          (daemonset["spec"]["updateStrategy"], daemonset["spec"]["minReadySeconds"]))
    # With ports of the host's among its own, a pod could not run beside another of the node.
    equal("ports of the pods", [None], [entry.get("ports") for entry in pod["containers"]])
    container(daemonset, "install-cni", image, None, PLUGIN | {"/var/lib/tartan": "/var/lib/tartan"})
    tartan = container(daemonset, "tartan", image, ["NET_ADMIN", "MKNOD"], {
        "/etc/tartan": "configMap", "/run/tartan": "/run/tartan", "/run/flannel": "/run/flannel",
        "/var/lib/tartan": "/var/lib/tartan", "/host/proc/sys/net": "/proc/sys/net"})
    equal("what the pod is told of itself", {"TARTAN_NODE_NAME": "spec.nodeName", "TARTAN_TAKE_OVER": "metadata.uid"},
          {entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in tartan["env"]})
    data = objects["ConfigMap tartan-cfg"]["data"]
    health = re.search(r'^healthz = "127\.0\.0\.1:(\d+)"$', data["tartan.toml"], re.M)
    asked = tartan["livenessProbe"]["httpGet"]
    equal("livenessProbe", {"host": "127.0.0.1", "port": health and int(health[1]), "path": "/healthz"}, asked)
    equal("readinessProbe", ["/usr/bin/tartan", "ready"], tartan["readinessProbe"]["exec"]["command"])
    equal("the net-conf", {"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}, json.loads(data["net-conf.json"]))


def removal(objects, ours, image):
    """Init containers that undo what was installed, in the mounts in which Tartan's own directories can go too."""
    equal("the objects of the removal", ["DaemonSet tartan-remove", "Namespace tartan-system"], sorted(objects))
    remove = objects["DaemonSet tartan-remove"]
    pod = pod_of(remove)
    expected = {key: ours[key] for key in ("hostNetwork", "priorityClassName", "tolerations", "affinity")}
    expected |= {"serviceAccountName": None, "automountServiceAccountToken": False}
    equal("the pods of the removal", expected, {key: pod.get(key) for key in expected})
    equal("labels of the removal, which are not Tartan's", {"app.kubernetes.io/name": "tartan-remove"},
          remove["spec"]["template"]["metadata"]["labels"])
    above = {"/run": "/run", "/var/lib": "/var/lib"}
    steps = [("uninstall-cni", ["cni", "uninstall"], None, PLUGIN | above),
             ("cleanup", ["cleanup"], ["NET_ADMIN"], above | {"/host/proc/sys/net": "/proc/sys/net"}),
             ("done", ["cleanup", "--stay"], ["NET_ADMIN"], {"/run": None, "/var/lib": None})]
    equal("the steps of the removal", [step[0] for step in steps],
          [entry["name"] for entry in pod["initContainers"] + pod["containers"]])
    for name, args, added, mounted in steps:
        equal(f"what {name} does", args, container(remove, name, image, added, mounted)["args"])


def same_as_chart(objects, chart):
    """But for the namespace, which the administrator makes, and what a chart alone can say."""
    template = chart["DaemonSet tartan"]["spec"]["template"]
    annotations = template["metadata"].pop("annotations")
    equal("annotations of the chart's pods", ["checksum/configuration"], sorted(annotations))
    for entry in template["spec"]["initContainers"] + template["spec"]["containers"]:
        equal("the chart's pull policy", "IfNotPresent", entry.pop("imagePullPolicy"))
    for config in (one["ConfigMap tartan-cfg"] for one in (objects, chart)):
        config["data"] = {name: text.rstrip() for name, text in config["data"].items()}
    del objects["Namespace tartan-system"]
    for name in sorted(objects | chart):
        equal(f"the chart's {name}", objects.get(name), chart.get(name))


def manifests(deploy, resources, remove, template, version):
    deploy, objects, image = Path(deploy), read(resources), f"localhost/tartan:{version}"
    account(objects)
    workload(objects, image)
    removal(read(remove), pod_of(objects["DaemonSet tartan"]), image)
    about = yaml.safe_load((deploy / "chart/Chart.yaml").read_text(encoding="utf-8"))
    equal("versions of the chart", (version, version), (about["version"], about["appVersion"]))
    same_as_chart(objects, read(template))
    print("\n".join(wrong) or "as they should be")
    sys.exit(bool(wrong))


def values(resources):
    objects = read(resources)
    daemonset, data = objects["DaemonSet tartan"], objects["ConfigMap tartan-cfg"]["data"]
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pod_of(daemonset)["volumes"]}
    agent = pod_of(daemonset)["containers"][0]
    config = json.loads(data["net-conf.json"])
    print(config["Network"], config["Backend"]["Type"], agent["image"], paths["cni-bin"], paths["cni-conf"],
          daemonset["metadata"]["namespace"], daemonset["spec"]["minReadySeconds"],
          agent["livenessProbe"]["httpGet"]["port"])


{"manifests": manifests, "values": values}[sys.argv[1]](*sys.argv[2:])
