"""Packs a directory into an image of one layer, as an archive that `ctr images import` takes; no registry is asked.

    oci_image.py DIRECTORY ARCHIVE NAME:TAG COMMAND...

The archive is as `docker save` writes it; the image's configuration is that of the OCI image specification 1.0.
"""

import hashlib
import io
import json
import platform
import sys
import tarfile


def main(directory, archive, name, *command):
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as packed:
        packed.add(directory, arcname=".")
    layer = layer.getvalue()
    config = {"architecture": {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()], "os": "linux"}
    config["config"] = {"Entrypoint": command, "Env": ["PATH=/bin"]}
    config["rootfs"] = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = [("config.json", json.dumps(config).encode()), ("manifest.json", json.dumps(manifest).encode())]
    with tarfile.open(archive, "w") as packed:
        for path, content in [("layer.tar", layer), *files]:
            info = tarfile.TarInfo(path)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))


main(*sys.argv[1:])
