"""What a kubelet asks of a container runtime about pods: the CRI, version v1, over a Unix socket.

    cri.py SOCKET RunPodSandbox NAME CGROUP [OPTION]...   port=HOST:CONTAINER  ingress=RATE  egress=RATE
    cri.py SOCKET METHOD [ID]

Prints the words of the answer, a line each: the id of a new sandbox, addresses, reasons. Messages are pairs of a
field's number, as in pkg/apis/runtime/v1/api.proto of k8s.io/cri-api, and a value. Needs Debian's python3-grpcio.
"""

import re
import sys

import grpc


def varint(number):
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + varint(number >> 7)


def encoded(message):
    """A value is a number, a text, or a message."""
    whole = b""
    for field, value in message:
        if isinstance(value, int):
            whole += varint(field << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else encoded(value)
            whole += varint(field << 3 | 2) + varint(len(value)) + value
    return whole


def sandbox(name, cgroup, *options):
    config = [(1, [(1, name), (2, f"uid-{name}"), (3, "default")]), (2, name), (3, "/tmp")]
    config += [(4, [(1, "10.96.0.10"), (2, "cluster.local")]), (8, [(1, cgroup)])]
    for key, value in (option.split("=") for option in options):
        if key == "port":
            host, container = map(int, value.split(":"))
            config.append((5, [(2, container), (3, host)]))
        else:
            config.append((7, [(1, f"kubernetes.io/{key}-bandwidth"), (2, value)]))
    return config


def main(server, method, *words):
    request = [(1, sandbox(*words))] if method == "RunPodSandbox" else [(1, word) for word in words]
    with grpc.insecure_channel(f"unix://{server}") as channel:
        call = channel.unary_unary(f"/runtime.v1.RuntimeService/{method}", encoded, bytes)
        # A length before a text is no letter.
        for word in re.findall(r"[0-9A-Za-z.:]{4,}", call(request, timeout=60).decode("latin-1")):
            print(word)


main(*sys.argv[1:])
