"""What a kubelet asks of a container runtime about pods: the CRI, version v1, over a Unix socket.

    cri.py SOCKET status                       prints "NetworkReady true", or false and why
    cri.py SOCKET run NAME CGROUP [OPTION]...  prints the id of the new sandbox
        port=HOST:CONTAINER  ingress=RATE  egress=RATE
    cri.py SOCKET podstatus|stop|rm ID         podstatus prints the state and the addresses

An error of the runtime is printed to standard error, with exit code 1. Messages are pairs of a field's number, as in
pkg/apis/runtime/v1/api.proto of k8s.io/cri-api, and a value. Needs grpc (Debian: python3-grpcio).
"""

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


def decoded(message):
    """Pairs whose values are numbers, or bytes."""
    rest = iter(message)

    def number():
        byte = next(rest)
        return byte if byte < 0x80 else byte & 0x7F | number() << 7

    for byte in rest:
        tag = byte if byte < 0x80 else byte & 0x7F | number() << 7
        value = number()
        yield tag >> 3, bytes(next(rest) for _ in range(value)) if tag & 7 else value


def first(message, number, default=b""):
    return dict(reversed(list(decoded(message)))).get(number, default)


def sandbox(name, cgroup, options):
    config = [(1, [(1, name), (2, f"uid-{name}"), (3, "default")]), (2, name), (3, "/tmp")]
    config += [(4, [(1, "10.96.0.10"), (2, "cluster.local")]), (8, [(1, cgroup)])]
    for key, value in (option.split("=") for option in options):
        if key == "port":
            host, container = map(int, value.split(":"))
            config.append((5, [(2, container), (3, host)]))
        else:
            config.append((7, [(1, f"kubernetes.io/{key}-bandwidth"), (2, value)]))
    return config


def main(socket, verb, *arguments):
    with grpc.insecure_channel(f"unix://{socket}") as channel:

        def call(method, *request):
            method = f"/runtime.v1.RuntimeService/{method}"
            return channel.unary_unary(method, encoded, bytes)(request, timeout=60)

        if verb == "status":
            for _, condition in decoded(first(call("Status"), 1)):
                if first(condition, 1) == b"NetworkReady":
                    ready = "true" if first(condition, 2, 0) else "false"
                    print("NetworkReady", ready, first(condition, 4).decode())
        elif verb == "run":
            print(first(call("RunPodSandbox", (1, sandbox(arguments[0], arguments[1], arguments[2:]))), 1).decode())
        elif verb == "podstatus":
            found = first(call("PodSandboxStatus", (1, arguments[0])), 1)
            network = first(found, 5)
            more = [first(address, 1).decode() for number, address in decoded(network) if number == 2]
            print(("ready", "notready")[first(found, 3, 0)], first(network, 1).decode(), *more)
        else:
            call({"stop": "StopPodSandbox", "rm": "RemovePodSandbox"}[verb], (1, arguments[0]))


try:
    main(*sys.argv[1:])
except grpc.RpcError as error:
    raise SystemExit(f"{error.code().name}: {error.details()}") from None
