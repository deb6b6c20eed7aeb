/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Why a program passes a packet on, to user space or to the host's stack, and why one drops it. Rust's side are
 * PassReason (dataplane/src/kernel_path/) and DropReason (dataplane/src/drops.rs). Numbers are places in `passes` and
 * in `counters`.
 */
#ifndef TARTAN_REASONS_H
#define TARTAN_REASONS_H

enum pass_reason {
	/* Not passed on: every check holds. */
	ADMITTED = -1,
	/* The kernel path is off. */
	PASS_OFF = 0,
	/* The lease has ended: no service has renewed it. */
	PASS_LEASE = 1,
	/* Neither IPv4 nor, on the underlay, VXLAN with IPv4 in it. */
	PASS_NOT_IPV4 = 2,
	/* Too short, or its lengths disagree. */
	PASS_MALFORMED = 3,
	/* IPv4 options, inside or outside. */
	PASS_OPTIONS = 4,
	/* A fragment, inside or outside. */
	PASS_FRAGMENT = 5,
	/* A header checksum is wrong, or a checksum is to be finished before the transport's own field. */
	PASS_CHECKSUM = 6,
	/* A super-packet of another kind than TCP or UDP, or with an impossible size. */
	PASS_SUPER_PACKET = 7,
	/* Source or destination is multicast, broadcast, loopback, link-local or unspecified. */
	PASS_NOT_UNICAST = 8,
	/* The source may not send from this node. */
	PASS_SOURCE = 9,
	/* The destination is this node's own. */
	PASS_LOCAL = 10,
	/* No peer has the destination or, on the underlay, the source. */
	PASS_NO_PEER = 11,
	/* User space exchanges packets with this peer. */
	PASS_PEER = 12,
	/* Larger than the path to the peer, or than the tunnel device takes. */
	PASS_TOO_BIG = 13,
	/* VXLAN flags or reserved bits, or another VXLAN network. */
	PASS_VXLAN = 14,
	/* The frame is not from the peer's VTEP to ours, or not between the pod and its gateway. */
	PASS_MAC = 15,
	/* The outer header says congestion, or a codepoint that the inner one must take over. */
	PASS_CONGESTION = 16,
	/* The outer source is not the address of the peer that has the inner source. */
	PASS_NOT_PEERS_SOURCE = 17,
	/* The inner destination is not in this node's local set. */
	PASS_NOT_OURS = 18,
	/* The flow has no entry. */
	PASS_NO_FLOW = 19,
	/* The flow's entry is of another epoch or generation, or has expired. */
	PASS_STALE_FLOW = 20,
	/* The flow begins or ends: SYN, FIN or RST. */
	PASS_FLOW_ENDS = 21,
	/* The flow is to be judged anew. */
	PASS_PROBE = 22,
	/* The source is not the pod's behind this device. */
	PASS_WRONG_POD = 23,
	/* The host's stack decrements the TTL to zero. */
	PASS_TTL = 24,
	/* The kernel refuses to add or remove headers. */
	PASS_REFUSED = 25,
	/* A TCP super-packet that user space sends faster, or a packet of the same flow behind one. */
	PASS_BULK_TCP = 26,
	PASS_REASONS,
};

/* The numbers of DropReason that programs use. */
enum drop_reason {
	DROP_MALFORMED = 0,
	DROP_UNDERLAY_REFUSED = 8,
	DROP_WRONG_VNI = 12,
	DROP_NOT_OUR_MAC = 13,
	DROP_BAD_SOURCE_MAC = 14,
	DROP_NOT_IP = 15,
	DROP_UNKNOWN_PEER = 16,
	DROP_NOT_PEERS_SOURCE = 17,
	DROP_NOT_OURS = 18,
	DROP_BAD_SUPER_PACKET = 20,
	DROP_DEVICE_REFUSED = 21,
	DROP_NOT_MARKED = 26,
};

#endif
