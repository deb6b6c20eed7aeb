#!/usr/bin/env python3
"""Which crates the programs are made of: as a CycloneDX 1.5 bill of materials, and the text of their licences.

    crates.py BILL LICENCES TARGET...

Crates are those that `tartan` and `tartan-cni` need on these targets, with those that run while they are built. Nothing in
either file depends on this machine or on the time of day but SOURCE_DATE_EPOCH.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
import uuid
from datetime import datetime, timezone
from pathlib import Path

PROGRAMS = ["tartan", "cni-shim"]
# The names under which crates ship their licence.
TEXTS = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)", re.I)


def metadata(targets):
    platforms = [word for target in targets for word in ("--filter-platform", target)]
    command = ["cargo", "metadata", "--locked", "--format-version", "1", *platforms]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def needed(data):
    """Packages by id, without those that only tests need; and whom each of them needs."""
    packages = {package["id"]: package for package in data["packages"]}
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    edges, left = {}, [key for key, package in packages.items() if package["name"] in PROGRAMS and package["source"] is None]
    if len(left) != len(PROGRAMS):
        sys.exit("crates.py: the workspace has no " + " or ".join(PROGRAMS))
    while left:
        key = left.pop()
        if key in edges:
            continue
        edges[key] = sorted(dep["pkg"] for dep in nodes[key]["deps"]
                            if any(kind["kind"] in (None, "build") for kind in dep["dep_kinds"]))
        left.extend(edges[key])
    return {key: packages[key] for key in edges}, edges


def checksums():
    lock = tomllib.loads(Path("Cargo.lock").read_text(encoding="utf-8"))
    return {(package["name"], package["version"]): package.get("checksum") for package in lock["package"]}


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, sums):
    entry = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
        "scope": "required",
    }
    if package["description"]:
        entry["description"] = " ".join(package["description"].split())
    if package["license"]:
        # Before SPDX expressions crates wrote a slash.
        entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    checksum = sums.get((package["name"], package["version"]))
    if checksum:
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return entry


def bill(packages, edges, sums, version):
    components = sorted((component(package, sums) for package in packages.values()), key=lambda entry: entry["bom-ref"])
    main = {"type": "application", "bom-ref": f"tartan@{version}", "name": "tartan", "version": version,
            "licenses": [{"expression": "Apache-2.0"}]}
    roots = sorted(reference(package) for package in packages.values() if package["name"] in PROGRAMS and package["source"] is None)
    dependencies = [{"ref": main["bom-ref"], "dependsOn": roots}] + sorted(
        ({"ref": reference(packages[key]), "dependsOn": sorted({reference(packages[other]) for other in others})}
         for key, others in edges.items()), key=lambda entry: entry["ref"])
    time = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    content = {"components": components, "dependencies": dependencies}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"timestamp": time, "component": main},
        **content,
    }


def texts(package):
    folder = Path(package["manifest_path"]).parent
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and TEXTS.match(path.name)]
    named = package.get("license_file")
    if named and (folder / named) not in files and (folder / named).is_file():
        files.append(folder / named)
    return [path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n").strip() for path in files]


def licences(packages):
    """Every text once, with the crates that ship it; crates without a text by their expression alone."""
    by_text, without = {}, []
    for package in sorted(packages.values(), key=lambda package: (package["name"], package["version"])):
        if package["source"] is None:
            continue
        name = f"{package['name']} {package['version']} ({package['license']})"
        found = texts(package)
        if not found:
            without.append(name)
        for text in found:
            by_text.setdefault(text, []).append(name)
    parts = []
    if without:
        parts.append("These crates ship no text of their licence:\n\n" + "\n".join(f"  {name}" for name in without))
    for text, names in sorted(by_text.items(), key=lambda item: (item[1], item[0])):
        parts.append("\n".join(f"  {name}" for name in names) + "\n\n" + text)
    return ("\n\n" + "-" * 80 + "\n\n").join(parts) + "\n"


def main(bill_file, licence_file, *targets):
    packages, edges = needed(metadata(targets))
    version = next(package["version"] for package in packages.values() if package["name"] == "tartan")
    found = bill(packages, edges, checksums(), version)
    Path(bill_file).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    Path(licence_file).write_text(licences(packages), encoding="utf-8")


main(*sys.argv[1:])
