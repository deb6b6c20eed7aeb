#!/usr/bin/env python3
"""Checks what deploy/kubernetes deploys as a whole, and that the Helm chart says the same.

    workload_manifests.py DEPLOY RESOURCES REMOVE VERSION   what `kubectl kustomize` printed of DEPLOY and of DEPLOY/remove
    workload_manifests.py chart DEPLOY [KEY=VALUE...]       prints the chart's objects instead
    workload_manifests.py helm DEPLOY TEMPLATE              TEMPLATE, what `helm template` printed, must be those objects

The pods must have the rights that they need and no others, and mount what the agent works on; the chart, with its default
values, must give the same objects. Its templates use a small part of Helm's language, which is rendered here: that is no
proof that Helm takes them. Prints what is wrong, and ends with 1, or "as they should be".
"""

import copy
import re
import sys
from pathlib import Path

import yaml

wrong = []
# Not one inside another.
CHOICE = re.compile(r"\s*\{\{- if \.Values\.([\w.]+) \}\}(.*?)\s*\{\{- else \}\}(.*?)\s*\{\{- end \}\}", re.S)


def equal(what, expected, found):
    if expected != found:
        wrong.append(f"{what}: expected {expected}, found {found}")


def by_kind(documents):
    return {f"{document['kind']} {document['metadata']['name']}": document for document in documents if document}


def container(daemonset, name):
    spec = daemonset["spec"]["template"]["spec"]
    return next(entry for entry in spec.get("initContainers", []) + spec["containers"] if entry["name"] == name)


def mounts(daemonset, entry):
    """Where each directory of the host is mounted."""
    volumes = {volume["name"]: volume for volume in daemonset["spec"]["template"]["spec"]["volumes"]}
    return {mount["mountPath"]: place(volumes[mount["name"]]) for mount in entry["volumeMounts"]}


def place(volume):
    """A directory of the host, the configuration, or None: a directory of the pod's own."""
    if "hostPath" in volume:
        return volume["hostPath"]["path"]
    return "configMap" if "configMap" in volume else None


def rights_of(name, entry, added):
    rights = entry["securityContext"]
    equal(f"rights of {name}", (None, False, True, ["ALL"], added),
          (rights.get("privileged"), rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"],
           rights["capabilities"]["drop"], rights["capabilities"].get("add")))


def workload(objects, version):
    equal("the objects", ["ClusterRole tartan", "ClusterRoleBinding tartan", "ConfigMap tartan-cfg", "DaemonSet tartan",
                          "Namespace tartan-system", "ServiceAccount tartan"], sorted(objects))
    daemonset = objects["DaemonSet tartan"]
    spec = daemonset["spec"]["template"]["spec"]
    equal("what of the host's the pods share", (True, None, None), (spec["hostNetwork"], spec.get("hostPID"), spec.get("hostIPC")))
    equal("the account", ("tartan", True), (spec["serviceAccountName"], spec["automountServiceAccountToken"]))
    equal("the priority", "system-node-critical", spec["priorityClassName"])
    equal("the tolerations", [{"operator": "Exists"}], spec["tolerations"])
    equal("the update", {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}, daemonset["spec"]["updateStrategy"])
    equal("seconds between two nodes", 5, daemonset["spec"]["minReadySeconds"])
    # With ports of the host's among its own, a pod could not run beside another of the node.
    equal("ports of the pods", [None], [entry.get("ports") for entry in spec["containers"]])
    equal("the namespace's level", "privileged",
          objects["Namespace tartan-system"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"])
    for name, added in (("install-cni", None), ("tartan", ["NET_ADMIN", "MKNOD"])):
        entry = container(daemonset, name)
        equal(f"the image of {name}", f"localhost/tartan:{version}", entry["image"])
        rights_of(name, entry, added)
    equal("mounts of install-cni", {"/opt/cni/bin": "/opt/cni/bin", "/etc/cni/net.d": "/etc/cni/net.d",
                                    "/var/lib/tartan": "/var/lib/tartan"}, mounts(daemonset, container(daemonset, "install-cni")))
    tartan = container(daemonset, "tartan")
    equal("mounts of tartan", {"/etc/tartan": "configMap", "/run/tartan": "/run/tartan", "/run/flannel": "/run/flannel",
                               "/var/lib/tartan": "/var/lib/tartan", "/host/proc/sys/net": "/proc/sys/net"}, mounts(daemonset, tartan))
    equal("what the pod is told of itself", {"TARTAN_NODE_NAME": "spec.nodeName", "TARTAN_TAKE_OVER": "metadata.uid"},
          {entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in tartan["env"]})
    data = objects["ConfigMap tartan-cfg"]["data"]
    health = re.search(r'^healthz = "127\.0\.0\.1:(\d+)"$', data["tartan.toml"], re.M)
    asked = tartan["livenessProbe"]["httpGet"]
    equal("livenessProbe", ("127.0.0.1", health and int(health[1]), "/healthz"), (asked["host"], asked["port"], asked["path"]))
    equal("readinessProbe", ["/usr/bin/tartan", "ready"], tartan["readinessProbe"]["exec"]["command"])
    equal("the net-conf", {"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}, yaml.safe_load(data["net-conf.json"]))
    return data


def removal(objects, daemonset, version):
    """Init containers that undo what was installed, in the mounts in which Tartan's own directories can go too."""
    equal("the objects of the removal", ["DaemonSet tartan-remove", "Namespace tartan-system"], sorted(objects))
    remove = objects["DaemonSet tartan-remove"]
    spec, ours = (one["spec"]["template"]["spec"] for one in (remove, daemonset))
    for key in ("hostNetwork", "priorityClassName", "tolerations", "affinity"):
        equal(f"{key} of the removal", ours[key], spec[key])
    equal("the account of the removal", (None, False), (spec.get("serviceAccountName"), spec["automountServiceAccountToken"]))
    equal("labels of the removal, which are not Tartan's", {"app.kubernetes.io/name": "tartan-remove"},
          remove["spec"]["template"]["metadata"]["labels"])
    plugin = {"/opt/cni/bin": "/opt/cni/bin", "/etc/cni/net.d": "/etc/cni/net.d"}
    above = {"/run": "/run", "/var/lib": "/var/lib"}
    steps = [("uninstall-cni", ["cni", "uninstall"], None, plugin | above),
             ("cleanup", ["cleanup"], ["NET_ADMIN"], above | {"/host/proc/sys/net": "/proc/sys/net"}),
             ("done", ["cleanup", "--stay"], ["NET_ADMIN"], {"/run": None, "/var/lib": None})]
    equal("the steps of the removal", [step[0] for step in steps],
          [entry["name"] for entry in spec["initContainers"] + spec["containers"]])
    for name, args, added, mounted in steps:
        entry = container(remove, name)
        equal(f"what {name} does", (f"localhost/tartan:{version}", args), (entry["image"], entry["args"]))
        rights_of(name, entry, added)
        equal(f"mounts of {name}", mounted, mounts(remove, entry))


def value(values, path):
    for part in path.split("."):
        values = values[part]
    return values


def rendered(text, values, name):
    """Go templates as far as the chart uses them: a value, the namespace, an indented text, a checksum, a choice by a value."""
    def one(match):
        expression = match.group("expression").strip()
        if expression == ".Release.Namespace":
            return "tartan-system"
        if expression.startswith("include "):
            return "checksum"
        plain = re.fullmatch(r"\.Values\.([\w.]+)", expression)
        if plain:
            return str(value(values, plain[1]))
        indented = re.fullmatch(r"\.Values\.([\w.]+) \| nindent (\d+)", expression)
        if indented:
            return "".join(f"\n{' ' * int(indented[2])}{line}" for line in str(value(values, indented[1])).split("\n"))
        wrong.append(f"{name}: {expression} is not understood here")
        return ""
    text = CHOICE.sub(lambda match: match[2] if value(values, match[1]) else match[3], text)
    return re.sub(r"(?P<trim>\s*\{\{-|\{\{)(?P<expression>.*?)\}\}", one, text)


def chart(deploy, values=None):
    home = deploy / "chart"
    values = values or yaml.safe_load((home / "values.yaml").read_text(encoding="utf-8"))
    objects = {}
    for file in sorted((home / "templates").glob("*.yaml")):
        objects.update(by_kind(yaml.safe_load_all(rendered(file.read_text(encoding="utf-8"), values, file.name))))
    return values, objects


def same_as_chart(deploy, objects, version):
    values, ours = chart(deploy)
    about = yaml.safe_load((deploy / "chart/Chart.yaml").read_text(encoding="utf-8"))
    equal("versions of the chart", (version, version), (about["version"], about["appVersion"]))
    daemonset = ours["DaemonSet tartan"]
    equal("the chart's checksum", {"checksum/configuration": "checksum"}, daemonset["spec"]["template"]["metadata"].pop("annotations"))
    for name in ("install-cni", "tartan"):
        equal("the chart's pull policy", "IfNotPresent", container(daemonset, name).pop("imagePullPolicy"))
    expected = {name: document for name, document in copy.deepcopy(objects).items() if not name.startswith("Namespace")}
    for name in expected:
        if name.startswith("ConfigMap"):
            for part in (expected[name], ours[name]):
                part["data"] = {key: text.rstrip() for key, text in part["data"].items()}
    equal("the chart's objects", sorted(expected), sorted(ours))
    for name in expected:
        equal(f"the chart's {name}", expected[name], ours.get(name))
    # Further lines and another port arrive where they should.
    values.update(extraConfig='metrics = "0.0.0.0:9476"\nworkers = 2', healthPort=18500, network="10.1.0.0/16")
    _, other = chart(deploy, values)
    equal("tartan.toml by values", ['registry = "kubernetes"', 'healthz = "127.0.0.1:18500"', 'metrics = "0.0.0.0:9476"', "workers = 2"],
          other["ConfigMap tartan-cfg"]["data"]["tartan.toml"].split("\n")[:4])
    equal("the probe's port by values", 18500, container(other["DaemonSet tartan"], "tartan")["livenessProbe"]["httpGet"]["port"])
    equal("the network by values", {"Network": "10.1.0.0/16", "Backend": {"Type": "vxlan"}},
          yaml.safe_load(other["ConfigMap tartan-cfg"]["data"]["net-conf.json"]))
    net_conf = '{\n  "Network": "10.2.0.0/16",\n  "Backend": {"Type": "vxlan", "VNI": 7}\n}'
    values.update(netConf=net_conf, minReadySeconds=15)
    _, other = chart(deploy, values)
    equal("the net-conf by values", net_conf, other["ConfigMap tartan-cfg"]["data"]["net-conf.json"].rstrip())
    equal("seconds between two nodes by values", 15, other["DaemonSet tartan"]["spec"]["minReadySeconds"])


def read(file):
    with open(file, encoding="utf-8") as text:
        return by_kind(yaml.safe_load_all(text))


def same_as_helm(deploy, template):
    """Helm is the judge of its own language: what it makes of the chart must be what is rendered here."""
    _, ours = chart(deploy)
    theirs = read(template)
    for objects in (ours, theirs):
        checksum = objects["DaemonSet tartan"]["spec"]["template"]["metadata"].pop("annotations")
        equal("annotations of the pods", ["checksum/configuration"], sorted(checksum))
        for name, text in objects["ConfigMap tartan-cfg"]["data"].items():
            objects["ConfigMap tartan-cfg"]["data"][name] = text.rstrip()
    equal("Helm's objects", sorted(ours), sorted(theirs))
    for name, document in ours.items():
        equal(f"Helm's {name}", document, theirs.get(name))


def main(first, *rest):
    if first == "chart":
        values = yaml.safe_load((Path(rest[0]) / "chart/values.yaml").read_text(encoding="utf-8"))
        values.update(entry.split("=", 1) for entry in rest[1:])
        print(yaml.safe_dump_all(chart(Path(rest[0]), values)[1].values()), end="")
        sys.exit("\n".join(wrong) or None)
    if first == "helm":
        same_as_helm(Path(rest[0]), rest[1])
    else:
        resources, remove, version = rest
        objects = read(resources)
        workload(objects, version)
        removal(read(remove), objects["DaemonSet tartan"], version)
        same_as_chart(Path(first), objects, version)
    print("\n".join(wrong) or "as they should be")
    sys.exit(bool(wrong))


main(*sys.argv[1:])
