"""Packs a directory into an image of one layer, as an archive that `ctr images import` takes; no registry is asked.

    oci_image.py DIRECTORY ARCHIVE NAME:TAG COMMAND...

The layout is that of the OCI image specification 1.0 (image-layout.md, manifest.md, config.md).
"""

import hashlib
import io
import json
import platform
import sys
import tarfile

MEDIA = "application/vnd.oci.image."


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def layer_of(directory):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(directory, arcname=".")
    return buffer.getvalue()


def described(kind, content):
    return {"mediaType": MEDIA + kind, "digest": digest(content), "size": len(content)}


def image(directory, name, command):
    """The files of the archive, by name."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    layer = layer_of(directory)
    config = json.dumps(
        {
            "architecture": machine,
            "os": "linux",
            "config": {"Entrypoint": command, "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MEDIA + "manifest.v1+json",
            "config": described("config.v1+json", config),
            "layers": [described("layer.v1.tar", layer)],
        }
    ).encode()
    entry = described("manifest.v1+json", manifest)
    entry["annotations"] = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.split(":")[-1],
    }
    entry["platform"] = {"architecture": machine, "os": "linux"}
    files = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode(),
    }
    for blob in (config, manifest, layer):
        files["blobs/" + digest(blob).replace(":", "/")] = blob
    return files


def main(directory, archive, name, *command):
    with tarfile.open(archive, "w") as packed:
        for path, content in image(directory, name, command).items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))


main(*sys.argv[1:])
