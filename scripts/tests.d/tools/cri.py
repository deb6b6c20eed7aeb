"""What a kubelet asks of a container runtime about pods: the CRI, version v1, over a Unix socket.

    cri.py SOCKET status                       prints "NetworkReady true", or false and why
    cri.py SOCKET run NAME CGROUP [OPTION]...  prints the id of the new sandbox
        port=HOST:CONTAINER[/udp]  ingress=RATE  egress=RATE
    cri.py SOCKET podstatus|stop|rm ID         podstatus prints the state and the addresses
    cri.py SOCKET list                         prints the id and the name of each sandbox

An error of the runtime is printed to standard error, with exit code 1. The messages are encoded by hand, with the
field numbers of k8s.io/cri-api, pkg/apis/runtime/v1/api.proto. Needs grpc (Debian: python3-grpcio).
"""

import sys

import grpc

PATIENCE = 60


def varint(number):
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(encoded) + bytes([number])


def number_field(field, number):
    return varint(field << 3) + varint(number)


def field(field_number, content):
    content = content.encode() if isinstance(content, str) else content
    return varint(field_number << 3 | 2) + varint(len(content)) + content


def entry(field_number, key, value):
    return field(field_number, field(1, key) + field(2, value))


def fields(message):
    """Field numbers and values of a message: integers, or bytes."""
    position = 0

    def read_varint():
        nonlocal position
        number = shift = 0
        while True:
            byte = message[position]
            position += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while position < len(message):
        tag = read_varint()
        if tag & 7 == 0:
            yield tag >> 3, read_varint()
        elif tag & 7 == 2:
            length = read_varint()
            yield tag >> 3, message[position : position + length]
            position += length
        else:
            raise ValueError(f"wire type {tag & 7}")


def first(message, number, default=b""):
    return next((value for found, value in fields(message) if found == number), default)


def call(channel, method, request=b""):
    unary = channel.unary_unary(
        f"/runtime.v1.RuntimeService/{method}",
        request_serializer=bytes,
        response_deserializer=bytes,
    )
    return unary(request, timeout=PATIENCE)


def port_mapping(value):
    """HOST:CONTAINER or HOST:CONTAINER/udp."""
    ports, _, protocol = value.partition("/")
    host, container = map(int, ports.split(":"))
    return (
        number_field(1, {"": 0, "tcp": 0, "udp": 1}[protocol])
        + number_field(2, container)
        + number_field(3, host)
    )


def sandbox(name, cgroup, options):
    config = field(1, field(1, name) + field(2, f"uid-{name}") + field(3, "default"))
    config += field(2, name) + field(3, "/tmp")
    config += field(4, field(1, "10.96.0.10") + field(2, "cluster.local"))
    for option in options:
        key, _, value = option.partition("=")
        if key == "port":
            config += field(5, port_mapping(value))
        elif key in ("ingress", "egress"):
            config += entry(7, f"kubernetes.io/{key}-bandwidth", value)
        else:
            raise SystemExit(f"unknown option {option}")
    return config + field(8, field(1, cgroup))


def status(channel):
    for _, condition in fields(first(call(channel, "Status"), 1)):
        if first(condition, 1) == b"NetworkReady":
            ready = "true" if first(condition, 2, 0) else "false"
            print("NetworkReady", ready, first(condition, 4).decode())


def podstatus(channel, sandbox_id):
    found = first(call(channel, "PodSandboxStatus", field(1, sandbox_id)), 1)
    network = first(found, 5)
    more = [
        first(ip, 1).decode() for number, ip in fields(network) if number == 2
    ]
    state = ("ready", "notready")[first(found, 3, 0)]
    print(state, first(network, 1).decode(), *more)


def sandboxes(channel):
    for _, item in fields(call(channel, "ListPodSandbox")):
        print(first(item, 1).decode(), first(first(item, 2), 1).decode())


def main(socket, verb, *arguments):
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        if verb == "status":
            status(channel)
        elif verb == "run":
            request = field(1, sandbox(arguments[0], arguments[1], arguments[2:]))
            print(first(call(channel, "RunPodSandbox", request), 1).decode())
        elif verb == "podstatus":
            podstatus(channel, arguments[0])
        elif verb == "stop":
            call(channel, "StopPodSandbox", field(1, arguments[0]))
        elif verb == "rm":
            call(channel, "RemovePodSandbox", field(1, arguments[0]))
        elif verb == "list":
            sandboxes(channel)
        else:
            raise SystemExit(__doc__)


try:
    main(*sys.argv[1:])
except grpc.RpcError as error:
    raise SystemExit(f"{error.code().name}: {error.details()}") from None
