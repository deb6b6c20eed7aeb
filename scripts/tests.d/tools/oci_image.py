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


def main(directory, archive, name, *command):
    files, layer = {}, io.BytesIO()

    def blob(kind, content):
        digest = hashlib.sha256(content).hexdigest()
        files[f"blobs/sha256/{digest}"] = content
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)}

    with tarfile.open(fileobj=layer, mode="w") as packed:
        packed.add(directory, arcname=".")
    layer = blob("layer.v1.tar", layer.getvalue())
    machine = {"architecture": {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()], "os": "linux"}
    config = machine | {"config": {"Entrypoint": command, "Env": ["PATH=/bin"]}}
    config["rootfs"] = {"type": "layers", "diff_ids": [layer["digest"]]}
    config = blob("config.v1+json", json.dumps(config).encode())
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json"}
    entry = blob("manifest.v1+json", json.dumps(manifest | {"config": config, "layers": [layer]}).encode())
    tag = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.split(":")[-1]}
    index = {"schemaVersion": 2, "manifests": [entry | {"annotations": tag, "platform": machine}]}
    files |= {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode()}
    with tarfile.open(archive, "w") as packed:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))


main(*sys.argv[1:])
