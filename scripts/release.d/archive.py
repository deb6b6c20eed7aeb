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
# Tests have less patience.
LEVEL = int(os.environ.get("GZIP_LEVEL", "9"))
MEDIA = "application/vnd.oci.image."
# `FROM scratch` in words: the program, and nothing that a shell could be run by.
CONFIG = {"Entrypoint": ["/usr/bin/tartan"], "Cmd": ["run"], "Env": ["PATH=/usr/bin"], "StopSignal": "SIGTERM"}
DESCRIPTION = "Pod network dataplane for Kubernetes, in user space, with flannel's packets"


def tar(directory):
    """The archive of all that a directory holds, by name; and compressed, without a name and a time in its head."""
    buffer, root = io.BytesIO(), Path(directory)
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).parts):
            info = archive.gettarinfo(path, arcname=str(path.relative_to(root)))
            info.uid = info.gid = 0
            info.uname = info.gname = "root"
            info.mtime = EPOCH
            info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
            archive.addfile(info, io.BytesIO(path.read_bytes()) if info.isreg() else None)
    return buffer.getvalue(), gzip.compress(buffer.getvalue(), compresslevel=LEVEL, mtime=0)


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def described(kind, content):
    return {"mediaType": MEDIA + kind, "digest": digest(content), "size": len(content)}


def index_of(entries):
    return canonical({"schemaVersion": 2, "mediaType": MEDIA + "index.v1+json", "manifests": entries})


def write_image(target, entry, blobs):
    """The image or list of images that an entry describes, with all that it refers to."""
    files = {"oci-layout": canonical({"imageLayoutVersion": "1.0.0"}), "index.json": index_of([entry])}
    files |= {"blobs/" + digest(blob).replace(":", "/"): blob for blob in blobs}
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            info.mtime = EPOCH
            archive.addfile(info, io.BytesIO(files[name]))


def image(directory, target, architecture, version):
    layer, packed = tar(directory)
    created = datetime.fromtimestamp(EPOCH, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {"title": "tartan", "description": DESCRIPTION, "licenses": "Apache-2.0", "version": version}
    labels = {f"org.opencontainers.image.{key}": value for key, value in about.items()}
    platform = {"architecture": architecture, "os": "linux"}
    config = canonical({
        **platform, "created": created, "config": {**CONFIG, "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
        "history": [{"created": created, "created_by": "scripts/release"}],
    })
    manifest = canonical({
        "schemaVersion": 2, "mediaType": MEDIA + "manifest.v1+json", "config": described("config.v1+json", config),
        "layers": [described("layer.v1.tar+gzip", packed)], "annotations": labels,
    })
    # podman names what it loads by the one, containerd by the other.
    keys = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
    names = dict.fromkeys(keys, f"localhost/tartan:{version}")
    entry = {**described("manifest.v1+json", manifest), "annotations": names, "platform": platform}
    write_image(target, entry, [config, manifest, packed])


def index(target, images):
    """An archive that has several images of one name, each for its platform."""
    entries, blobs = [], []
    for path in sorted(images):
        with tarfile.open(path) as archive:
            content = {info.name: archive.extractfile(info).read() for info in archive}
        entries += json.loads(content["index.json"])["manifests"]
        blobs += [content[name] for name in content if name.startswith("blobs/")]
    names = [entry.pop("annotations") for entry in entries][0]
    both = index_of(entries)
    write_image(target, {**described("index.v1+json", both), "annotations": names}, [*blobs, both])


match sys.argv[1:]:
    case ["tar", FROM, TO]:
        Path(TO).write_bytes(tar(FROM)[1])
    case ["image", FROM, TO, ARCHITECTURE, VERSION]:
        image(FROM, TO, ARCHITECTURE, VERSION)
    case ["index", TO, *IMAGES]:
        index(TO, IMAGES)
    case _:
        sys.exit(__doc__)
