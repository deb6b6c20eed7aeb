#!/usr/bin/env python3
"""Archives whose bytes depend on the files in them alone: sorted, root's, with the time of the release.

    archive.py tar DIRECTORY FILE.tar.gz
    archive.py image DIRECTORY FILE.tar ARCHITECTURE VERSION
    archive.py index FILE.tar IMAGE.tar...

An image is an archive of one layer in the layout of the OCI image specification 1.0, which `podman load`, `ctr images
import` and `skopeo copy oci-archive:` take. SOURCE_DATE_EPOCH is the time that all files get.
"""

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from datetime import datetime, timezone
from pathlib import Path

EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
MEDIA = "application/vnd.oci.image."
# `FROM scratch` in words: the program, and nothing that a shell could be run by.
CONFIG = {
    "Entrypoint": ["/usr/bin/tartan"],
    "Cmd": ["run"],
    "Env": ["PATH=/usr/bin"],
    "StopSignal": "SIGTERM",
}
DESCRIPTION = "Pod network dataplane for Kubernetes, in user space, with flannel's packets"


def tar(directory):
    """The uncompressed archive of all that a directory holds, by name."""
    buffer = io.BytesIO()
    root = Path(directory)
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).parts):
            info = archive.gettarinfo(path, arcname=str(path.relative_to(root)))
            info.uid = info.gid = 0
            info.uname = info.gname = "root"
            info.mtime = EPOCH
            info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
            if info.isreg():
                with path.open("rb") as content:
                    archive.addfile(info, content)
            else:
                archive.addfile(info)
    return buffer.getvalue()


def compressed(content):
    # Without a name and with no time in its head.
    return gzip.compress(content, compresslevel=9, mtime=0)


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def described(kind, content):
    return {"mediaType": MEDIA + kind, "digest": digest(content), "size": len(content)}


def image(directory, architecture, version):
    """The files of the image's archive, by name."""
    layer = tar(directory)
    packed = compressed(layer)
    created = datetime.fromtimestamp(EPOCH, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {
        "org.opencontainers.image.title": "tartan",
        "org.opencontainers.image.description": DESCRIPTION,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": version,
    }
    platform = {"architecture": architecture, "os": "linux"}
    config = canonical({
        **platform,
        "created": created,
        "config": {**CONFIG, "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
        "history": [{"created": created, "created_by": "scripts/release"}],
    })
    manifest = canonical({
        "schemaVersion": 2,
        "mediaType": MEDIA + "manifest.v1+json",
        "config": described("config.v1+json", config),
        "layers": [described("layer.v1.tar+gzip", packed)],
        "annotations": labels,
    })
    # podman names what it loads by the one, containerd by the other.
    name = f"localhost/tartan:{version}"
    entry = {
        **described("manifest.v1+json", manifest),
        "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name},
        "platform": platform,
    }
    files = {"oci-layout": canonical({"imageLayoutVersion": "1.0.0"}),
             "index.json": canonical({"schemaVersion": 2, "mediaType": MEDIA + "index.v1+json", "manifests": [entry]})}
    for blob in (config, manifest, packed):
        files["blobs/" + digest(blob).replace(":", "/")] = blob
    return files


def index(images):
    """The files of an archive that has several images of one name, each for its platform."""
    files, entries = {}, []
    for path in sorted(images):
        with tarfile.open(path) as archive:
            content = {info.name: archive.extractfile(info).read() for info in archive}
        entries += json.loads(content.pop("index.json"))["manifests"]
        files |= content
    names = entries[0]["annotations"]
    manifests = [{key: value for key, value in entry.items() if key != "annotations"} for entry in entries]
    both = canonical({"schemaVersion": 2, "mediaType": MEDIA + "index.v1+json", "manifests": manifests})
    entry = {**described("index.v1+json", both), "annotations": names}
    files["blobs/" + digest(both).replace(":", "/")] = both
    files["index.json"] = canonical({"schemaVersion": 2, "mediaType": MEDIA + "index.v1+json", "manifests": [entry]})
    return files


def write_image(target, files):
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            info.mtime = EPOCH
            archive.addfile(info, io.BytesIO(files[name]))


def main(kind, directory, target, *rest):
    if kind == "tar":
        Path(target).write_bytes(compressed(tar(directory)))
    elif kind == "image":
        write_image(target, image(directory, *rest))
    elif kind == "index":
        write_image(directory, index([target, *rest]))
    else:
        sys.exit(__doc__)


main(*sys.argv[1:])
