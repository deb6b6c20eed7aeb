#!/usr/bin/env python3
"""Which crates the programs are made of: as a CycloneDX 1.5 bill of materials, and the text of their licences.

    crates.py BILL LICENCES TARGET...

Crates are those that `tartan` and `tartan-cni` need on these targets, with those that run while they are built. Nothing
in either file depends on this machine or on the time of day but SOURCE_DATE_EPOCH.
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


def needed(targets):
    """Packages by id, without those that only tests need; whom each of them needs; and the programs'."""
    platforms = [word for target in targets for word in ("--filter-platform", target)]
    command = ["cargo", "metadata", "--locked", "--format-version", "1", *platforms]
    data = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    packages = {package["id"]: package for package in data["packages"]}
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    roots = [key for key, package in packages.items() if package["name"] in PROGRAMS and package["source"] is None]
    edges, left = {}, list(roots)
    if len(left) != len(PROGRAMS):
        sys.exit("crates.py: the workspace has no " + " or ".join(PROGRAMS))
    while left:
        key = left.pop()
        if key not in edges:
            edges[key] = sorted(dep["pkg"] for dep in nodes[key]["deps"]
                                if any(kind["kind"] in (None, "build") for kind in dep["dep_kinds"]))
            left.extend(edges[key])
    return {key: packages[key] for key in edges}, edges, roots


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, sums):
    name, version = package["name"], package["version"]
    entry = {"type": "library", "name": name, "version": version, "scope": "required"}
    entry["bom-ref"] = entry["purl"] = reference(package)
    if package["description"]:
        entry["description"] = " ".join(package["description"].split())
    if package["license"]:
        # Before SPDX expressions crates wrote a slash.
        entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if sums.get((name, version)):
        entry["hashes"] = [{"alg": "SHA-256", "content": sums[name, version]}]
    if package["repository"]:
        entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return entry


def bill(packages, edges, roots, version):
    lock = tomllib.loads(Path("Cargo.lock").read_text(encoding="utf-8"))
    sums = {(package["name"], package["version"]): package.get("checksum") for package in lock["package"]}
    main = {"type": "application", "bom-ref": f"tartan@{version}", "name": "tartan", "version": version,
            "licenses": [{"expression": "Apache-2.0"}]}
    needs = {reference(packages[key]): {reference(packages[other]) for other in edges[key]} for key in edges}
    components = [component(package, sums) for package in packages.values()]
    content = {
        "components": sorted(components, key=lambda entry: entry["purl"]),
        "dependencies": [{"ref": main["bom-ref"], "dependsOn": sorted(reference(packages[key]) for key in roots)},
                         *({"ref": key, "dependsOn": sorted(needs[key])} for key in sorted(needs))],
    }
    time = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1,
            "metadata": {"timestamp": time, "component": main}, **content}


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
        name = f"  {package['name']} {package['version']} ({package['license']})"
        found = texts(package)
        if not found:
            without.append(name)
        for text in found:
            by_text.setdefault(text, []).append(name)
    parts = ["These crates ship no text of their licence:\n\n" + "\n".join(without)] if without else []
    parts += ["\n".join(names) + "\n\n" + text
              for text, names in sorted(by_text.items(), key=lambda item: (item[1], item[0]))]
    return ("\n\n" + "-" * 80 + "\n\n").join(parts) + "\n"


def main(bill_file, licence_file, *targets):
    packages, edges, roots = needed(targets)
    version = next(package["version"] for package in packages.values() if package["name"] == "tartan")
    found = json.dumps(bill(packages, edges, roots, version), indent=1, sort_keys=True) + "\n"
    Path(bill_file).write_text(found, encoding="utf-8")
    Path(licence_file).write_text(licences(packages), encoding="utf-8")


main(*sys.argv[1:])
