"""TCP and UDP exchanges, in which the server tells who it is and whom it saw as its peer.

    exchange.py serve NAME PORT ADDRESS...      answers at these addresses until it is killed
    exchange.py ask                             asks for every line of its input, many at a time

A line for `ask` is "FROM ADDRESS PORT": FROM is the address to be bound to, or "any". For each are two lines of output,
"tcp NAME PEER" and "udp NAME PEER", or why there was no answer in place of NAME and PEER. Over TCP goes 1 MiB each way,
over UDP one datagram, which is sent once more if it is not answered in time; what comes back must be what was sent.
"""

import contextlib
import errno
import random
import socket
import socketserver
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from packets import family

DATA = random.Random(1).randbytes(1 << 20)
# Bytes of a datagram, and of a question over TCP that is not about the amount.
LITTLE = 1000
# Seconds: of a datagram the first and the second time, and of a connection; a client may have to wait for a core.
PATIENCE = {"udp": (1.5, 20.0), "tcp": (30.0,)}
# Exchanges at a time, and of these with much to send: more would fill a server's queue, or a tunnel device's.
WORKERS = 12
MUCH = threading.Semaphore(1)
# Bytes that a socket takes in at once: so a worker of Tartan's that waits for its core finds few packets of one pod,
# and none beyond the pod's share (OverShare).
WINDOW = 1 << 16
SERVERS = ((socketserver.ThreadingTCPServer, socketserver.StreamRequestHandler),
           (socketserver.UDPServer, socketserver.DatagramRequestHandler))


def serve(name, port, addresses):
    """Answers there from now on, by threads."""
    def answer(handler):
        handler.wfile.write(f"{name} {handler.client_address[0]}\n".encode() + handler.rfile.read())

    for address in addresses:
        how = {"address_family": family(address), "request_queue_size": 512, "allow_reuse_address": True}
        for server, handler in SERVERS:
            answering = type("Answer", (handler,), {"handle": answer, "timeout": 60.0})
            listening = type("Server", (server,), how)((address, port), answering)
            listening.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
            threading.Thread(target=listening.serve_forever).start()


def exchange(protocol, client, data):
    client.sendall(data)
    if protocol == "tcp":
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    else:
        answer = client.recv(65536)
    line, _, came = answer.partition(b"\n")
    return line.decode() if came == data else f"none ({len(came)} bytes, or others than were sent)"


def ask(protocol, own, address, port, size=len(DATA), patience=None):
    """NAME and PEER, or why there was no answer."""
    kind, size = (socket.SOCK_STREAM, size) if protocol == "tcp" else (socket.SOCK_DGRAM, LITTLE)
    for seconds in patience or PATIENCE[protocol]:
        try:
            with socket.socket(family(address), kind) as client:
                client.settimeout(seconds)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
                if own != "any":
                    client.bind((own, 0))
                client.connect((address, int(port)))
                with MUCH if size > LITTLE else contextlib.nullcontext():
                    return exchange(protocol, client, DATA[:size])
        except TimeoutError:
            continue
        except OSError as error:
            return errno.errorcode.get(error.errno, str(error))
    return "timeout"


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    else:
        questions = [(protocol, *line.split()) for line in sys.stdin for protocol in ("tcp", "udp")]
        with ThreadPoolExecutor(WORKERS) as pool:
            for (protocol, *_), found in zip(questions, pool.map(lambda question: ask(*question), questions)):
                print(protocol, found, flush=True)
