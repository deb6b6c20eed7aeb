/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The tables of the kernel path. The service writes what it has decided (dataplane/src/kernel_path/), the programs read
 * it and count. Rust's side of each structure is dataplane/src/kernel_path/layout.rs; sizes and offsets are compared by
 * a test.
 *
 * Addresses, ports and VNI are in network byte order; everything else is in that of the machine. Times are nanoseconds
 * of CLOCK_MONOTONIC (bpf_ktime_get_ns). Inner and outer packets are IPv4: all else is user space's.
 */
#ifndef TARTAN_TABLES_H
#define TARTAN_TABLES_H

#include <linux/types.h>

/* settings.flags */
enum {
	/* Programs act; without it each lets everything pass. */
	KERNEL_PATH_ON = 1,
	/* Flows of flows_out and flows_in pass between pod and underlay. */
	KERNEL_PATH_FLOWS = 2,
	/* What no table knows goes to settings.private_port: a VXLAN device has the port of the format. */
	KERNEL_PATH_PRIVATE_PORT = 4,
	/* TCP super-packets to peers are user space's: the underlay device cuts UDP datagrams and no tunnel's
	 * super-packets, so that the kernel would cut them on the processor, and a worker sends them uncut. */
	KERNEL_PATH_BULK_TCP_PASSES = 8,
};

/* One entry; replaced as a whole. */
struct settings {
	__u32 flags;
	/* Flows are proposed and judged in this one. */
	__u32 epoch;
	/* The programs act until then: a service that lives moves it on. */
	__u64 lease_end;
	__u32 underlay_ifindex;
	__u32 tunnel_ifindex;
	/* Our underlay address. */
	__be32 local;
	/* Largest inner packet that the tunnel device takes in one piece, bytes. */
	__u16 inner_mtu;
	/* UDP port of the format, and the port at which the service receives what the programs pass on. */
	__be16 vxlan_port;
	__be16 private_port;
	/* Outer source ports are base + flow_hash() % count, in the byte order of the machine. */
	__u16 source_port_base;
	__u16 source_port_count;
	/* Packets of a flow after which it is proposed. */
	__u16 flow_after;
	/* What the VXLAN device may take: packets whose MARK_BITS are these, chosen at random at each load, never 0. */
	__u32 mark;
	/* The VNI in the upper 24 bits, as in the VXLAN header. */
	__be32 vni;
	/* MAC of the underlay device, and our VTEP MAC. */
	__u8 underlay_mac[6];
	__u8 vtep[6];
	/* MAC of the tunnel device, where it is a TAP. */
	__u8 tunnel_mac[6];
	__u16 pad;
	/* Flows are followed that were judged in this epoch or a later one. It is earlier than `epoch` only for the first
	 * seconds of a service: meanwhile the flows that the service before it installed are judged anew. */
	__u32 oldest_epoch;
	/* The generation of nf_tables' rules (NFTA_GEN_ID) up to which each change has had its effect on flows; 0 if unknown.
	 * No program reads it: it is kept for the next service. */
	__u32 rules_generation;
	__u32 unused;
};

/* The bits of a packet's mark that are ours: none of kube-proxy's, Calico's or the cloud agents'. */
#define MARK_BITS 0x00003f7f

/* Keys of the two tries: prefixlen, then the address. */
struct prefix {
	__u32 length;
	__be32 address;
};

/* peers[0] is never used: fib's value 0 is "no peer". */
enum {
	/* The programs may send to it: address, VTEP and next hop are known, it announces the kernel path or is a
	 * kernel VXLAN device, its format is vxlan. */
	PEER_SEND = 1,
	/* They may receive from it. */
	PEER_RECEIVE = 2,
};

struct peer {
	__be32 address;
	__u32 flags;
	/* Moves on when anything about the peer changes: flows of another generation are not followed. */
	__u32 generation;
	/* Largest inner packet to it, bytes. */
	__u16 mtu;
	__u8 vtep[6];
	__u8 next_hop[6];
	__u16 pad;
};

/* Value of `local`, the trie of this node's own addresses. Where prefixes overlap, each holds the union of all that
 * contain it. */
enum {
	/* May be an inner source of what leaves. */
	LOCAL_SOURCE = 1,
	/* May be an inner destination of what arrives. */
	LOCAL_DESTINATION = 2,
	/* This node's: its subnets, and each address of a pod, the tunnel or the node (Pods::is_ours,
	 * Pods::in_own_subnet). It is no peer's source, and never encapsulated as a destination. */
	LOCAL_OURS = 4,
};

/* pod.namespace: not known. */
#define NO_NAMESPACE 0xffffffff

/* A pod of this node. Key: its address. */
struct pod {
	/* Its host's end; 0: none of its flows leaves the host's stack out. */
	__u32 ifindex;
	/* The pod's network namespace, by the number that the host's namespace has for it (nsid). */
	__u32 namespace;
	__u32 generation;
	/* Its place in pod_counts. */
	__u32 number;
	__u8 pod_mac[6];
	__u8 host_mac[6];
};

/* As the packet has it, in both directions. The padding is zero. */
struct flow_key {
	__be32 source;
	__be32 destination;
	__be16 source_port;
	__be16 destination_port;
	__u8 protocol;
	__u8 pad[3];
};

enum {
	/* TCP super-packets may be decapsulated by the program itself: a socket of the pod takes them, so that the pod
	 * does not forward them. */
	FLOW_DIRECT_TCP = 1,
};

/* What stands in front of the inner packet: Ethernet, IPv4, UDP, VXLAN, inner Ethernet. */
#define OUTER_BYTES 64

struct flow {
	/* Not followed from then on. A packet on the slow path after that makes it 0, once. */
	__u64 until;
	/* When a packet of it was passed to the slow path last, to be judged anew. */
	__u64 probed;
	__u64 last_seen;
	__u64 packets;
	__u64 bytes;
	__u32 epoch;
	__u32 peer;
	__u32 peer_generation;
	__u32 pod_generation;
	/* The pod's host end: where its packets come from, or go to. */
	__u32 ifindex;
	/* The pod's place in pod_counts. */
	__u32 pod;
	__u32 flags;
	/* flows_out: what encapsulate.h (write_header) writes, with total length, TOS and UDP length zero and, in
	 * place of the IPv4 checksum, the folded sum of the header, not complemented. flows_in: the pod's and the
	 * host end's MAC in the first 12. */
	__u8 header[OUTER_BYTES];
	/* A packet of it is on the slow path to propose it anew; 0 in a new entry. */
	__u32 probing;
};

/* Ring buffer `events`: what the service should know. */
enum {
	/* A flow has passed settings.flow_after packets of the present epoch through the host's stack. */
	EVENT_FLOW_OUT = 1,
	EVENT_FLOW_IN = 2,
	/* A router reports that the path to the underlay address flow.destination takes less than we send. Not
	 * proved: any host that knows addresses and ports can send such a report. At most once a second of one
	 * address. */
	EVENT_PATH_REPORT = 3,
	/* As EVENT_FLOW_IN, of a TCP connection that ends at a socket of the pod. */
	EVENT_FLOW_IN_SOCKET = 4,
};

struct event {
	__u32 kind;
	/* Zero in a path report. */
	__u32 peer;
	__u32 epoch;
	/* Path reports: the largest outer packet that the router passes on, bytes; zero from a router that does not
	 * say. */
	__u32 mtu;
	struct flow_key flow;
};

/* `seen`: packets (a super-packet is one) of flows that the host's stack carried. The flow is proposed at flow_after
 * packets, and while it has no entry, again at twice, four times, ... that many, and from PROPOSE_MOST times that many on
 * at each multiple: a flow that is refused costs control ever less. One whose entry came to its end is counted from the
 * start, and so is a direction of a TCP connection at its SYN.
 *
 * An array of sets of places. seen_place() says which set is the flow's, and flow_hash() which place in it. Most flows are
 * short, and to enter each into a hash table of the kernel, and another out of it, would take longer than the rest of what
 * the programs do for it. Where a set is full the place that was used least recently makes room, but one that was used
 * within SEEN_KEPT only once in SEEN_CHANCE packets of newcomers: of many flows that come by rotation those that have a
 * place reach flow_after, and leave it to others. Two CPUs may lose each other's counts, and two flows have one place by a chance of 1 in
 * 2^32: then one is proposed later or earlier, and control judges it all the same. */
struct seen {
	/* 0: nobody's. */
	__u32 tag;
	__u32 epoch;
	__u32 packets;
	/* When it was counted last, in units of 2^20 ns, which wrap. */
	__u32 used;
};

#define SEEN_SETS 16384
#define SEEN_PLACES 4
/* In the units of `used`: a second. */
#define SEEN_KEPT 954u
/* A power of two. */
#define SEEN_CHANCE 64

struct seen_set {
	struct seen places[SEEN_PLACES];
};

/* Value of `reports`: path reports told of this destination, or with key 0 of all, in this second of bpf_ktime_get_ns. */
struct report_count {
	__u32 second;
	__u32 told;
};

#define PROPOSE_MOST 1024

/* `last_marked`, an array of __u64: when a packet of a flow with this hash last took the longer way (nanoseconds): of
 * what arrives, by the VXLAN device, and of what leaves, by user space (KERNEL_PATH_BULK_TCP_PASSES). A program delivers
 * sooner, so for LAST_MARKED_FOR a flow's other packets follow, and none overtakes. */
#define LAST_MARKED 4096
#define LAST_MARKED_FOR 100000000ull

/* A live flow whose `until` is less than PROBE_BEFORE away sends a packet by the slow path once every PROBE_EVERY
 * (nanoseconds). That one proposes it, if the program carried one of it less than PROBE_SPARSE before; else the entry
 * ends, and the host's stack has the flow until flow_after packets have come. */
#define PROBE_BEFORE 30000000000ull
#define PROBE_EVERY 1000000000ull
#define PROBE_SPARSE 2000000000ull

/* Values of the per-CPU arrays peer_counts and pod_counts: inner wire packets and inner bytes. */
struct traffic {
	__u64 sent_packets;
	__u64 sent_bytes;
	__u64 received_packets;
	__u64 received_bytes;
};

/*
 * `counters`, a per-CPU array: one more worker of the conservation law, in inner wire packets. A packet that a program
 * passes on is none of its own: user space or the host's stack counts it. The places inside a direction are those of
 * dataplane/src/counters/tally.rs.
 */
enum {
	RECEIVED = 0,
	SENT = 2,
	DELIVERED = 3,
	DROPS = 8,
	DIRECTION_WORDS = 64,
	OUTBOUND = 0,
	INBOUND = DIRECTION_WORDS,
	COUNTERS = 2 * DIRECTION_WORDS,
};

/* The hash of a flow: spreads outer source ports, and is the same on the stateless path and in a flow's header. The
 * finaliser is that of MurmurHash3. All values as they lie in the packet, read as numbers of the machine. */
static inline __attribute__((always_inline)) __u32 flow_hash(const struct flow_key *key)
{
	__u32 hash = key->source * 0x9e3779b1u ^ key->destination * 0x85ebca77u;

	hash ^= ((__u32)key->source_port << 16 | key->destination_port) * 0xc2b2ae3du ^ key->protocol;
	hash ^= hash >> 16;
	hash *= 0x85ebca6bu;
	hash ^= hash >> 13;
	hash *= 0xc2b2ae35u;
	return hash ^ hash >> 16;
}

/* The flow's set in `seen`. `secret`: pods choose ports, and it makes it harder to choose those of another pod's set; 13 bits
 * of it are random. */
static inline __attribute__((always_inline)) __u32 seen_place(const struct flow_key *key, __u32 secret)
{
	__u32 hash = (key->source ^ key->protocol ^ secret) * 0x27d4eb2fu;

	hash = (hash ^ hash >> 15 ^ key->destination) * 0x2c1b3c6du;
	hash = (hash ^ hash >> 12 ^ ((__u32)key->source_port << 16 | key->destination_port)) * 0x297a2d39u;
	/* The upper bits of a port are in the upper bits alone until now. */
	hash = (hash ^ hash >> 15) * 0x85ebca6bu;
	return (hash ^ hash >> 16) % SEEN_SETS;
}

#endif
