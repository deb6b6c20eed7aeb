/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Headers in front of an inner packet, as the service and a kernel VXLAN device write them. */
#ifndef TARTAN_ENCAPSULATE_H
#define TARTAN_ENCAPSULATE_H

#include "checksum.h"
#include "parse.h"
#include "tables.h"

#define OUTER_TTL 64
#define VXLAN_FLAGS 0x08000000
#define ECN_BITS 3

/* RFC 7348 section 5: the I flag alone, the VNI in the upper 24 bits. */
struct vxlan {
	__be32 flags;
	__be32 vni;
};

/* What stands in front of the inner packet. Pointers, because a packed structure would be read byte by byte. */
struct outer {
	struct ethhdr *eth;
	struct iphdr *ip;
	struct udphdr *udp;
	struct vxlan *vxlan;
	struct ethhdr *frame;
};
_Static_assert(2 * sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr) + sizeof(struct vxlan) ==
		       OUTER_BYTES, "outer headers");

/* Bytes between the Ethernet header of the underlay and the inner packet. */
#define ROOM (OUTER_BYTES - sizeof(struct ethhdr))

/* The headers at the start of the packet, of which the caller has proved OUTER_BYTES. */
static __always_inline struct outer outer_at(void *data)
{
	struct outer outer;

	outer.eth = data;
	outer.ip = (void *)(outer.eth + 1);
	outer.udp = (void *)(outer.ip + 1);
	outer.vxlan = (void *)(outer.udp + 1);
	outer.frame = (void *)(outer.vxlan + 1);
	return outer;
}

/* Every MAC in a packet or a table lies at an even place. */
static __always_inline void copy_mac(void *to, const void *from)
{
	__u16 *a = to;
	const __u16 *b = from;

	a[0] = b[0];
	a[1] = b[1];
	a[2] = b[2];
}

static __always_inline bool same_mac(const void *one, const void *other)
{
	const __u16 *a = one, *b = other;

	return !((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]));
}

/*
 * The header for packets of that hash to `peer`, with the length, TOS and checksum that struct flow describes. DF is
 * set as on the service's sockets (IP_PMTUDISC_PROBE). The UDP checksum is zero as from a kernel VXLAN device: to
 * compute one would mean to read the payload.
 */
static __always_inline void write_header(struct outer outer, const struct settings *set, const struct peer *peer,
					 __u32 hash)
{
	__u16 port = set->source_port_base;

	if (set->source_port_count)
		port += hash % set->source_port_count;
	copy_mac(outer.eth->h_dest, peer->next_hop);
	copy_mac(outer.eth->h_source, set->underlay_mac);
	outer.eth->h_proto = bpf_htons(ETH_P_IP);
	__builtin_memset(outer.ip, 0, sizeof(*outer.ip));
	outer.ip->version = 4;
	outer.ip->ihl = 5;
	outer.ip->frag_off = bpf_htons(IPV4_DONT_FRAGMENT);
	outer.ip->ttl = OUTER_TTL;
	outer.ip->protocol = IPPROTO_UDP;
	outer.ip->saddr = set->local;
	outer.ip->daddr = peer->address;
	outer.ip->check = header_sum(outer.ip);
	outer.udp->source = bpf_htons(port);
	outer.udp->dest = set->vxlan_port;
	outer.udp->len = 0;
	outer.udp->check = 0;
	outer.vxlan->flags = bpf_htonl(VXLAN_FLAGS);
	outer.vxlan->vni = set->vni;
	copy_mac(outer.frame->h_dest, peer->vtep);
	copy_mac(outer.frame->h_source, set->vtep);
	outer.frame->h_proto = bpf_htons(ETH_P_IP);
}

/* The same, made ready by control for a flow. */
static __always_inline void copy_header(struct outer outer, const struct flow *flow)
{
	const __u16 *from = (const __u16 *)flow->header;
	__u16 *to = (void *)outer.eth;

#pragma unroll
	for (int i = 0; i < OUTER_BYTES / 2; i++)
		to[i] = from[i];
}

/* Adds to such a header what differs from packet to packet. ECN is copied (RFC 6040 section 4.1); the DSCP is 0, as on
 * the service's sockets. */
static __always_inline void finish_header(struct outer outer, const struct inner *inner)
{
	__be16 length = bpf_htons(inner->length + ROOM);
	__u8 tos = inner->tos & ECN_BITS;

	outer.ip->tot_len = length;
	outer.ip->tos = tos;
	outer.ip->check = ~fold((__u32)outer.ip->check + length + bpf_htons(tos));
	outer.udp->len = bpf_htons(inner->length + ROOM - sizeof(struct iphdr));
}

/* Whether a packet fits: each wire packet the path, and all of it a 16-bit length. */
static __always_inline bool fits(const struct inner *inner, const struct peer *peer)
{
	return inner->wire <= peer->mtu && inner->length + ROOM <= 0xffff;
}

/*
 * Makes room behind the Ethernet header, if any. The flags say what the room will hold: the kernel cuts super-packets
 * by it (SKB_GSO_UDP_TUNNEL), each to its own size (FIXED_GSO), and the state of the inner checksum holds
 * (NO_CSUM_RESET). ENCAP_L2_ETH is the newest, of Linux 5.13. Nothing has changed where the kernel refuses: a packet
 * that is encapsulated already (a tunnel of a pod), or a super-packet of another kind.
 */
static __always_inline int make_room(struct __sk_buff *skb)
{
	return bpf_skb_adjust_room(skb, ROOM, BPF_ADJ_ROOM_MAC,
				   BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 |
				   BPF_F_ADJ_ROOM_ENCAP_L4_UDP | BPF_F_ADJ_ROOM_ENCAP_L2(sizeof(struct ethhdr)) |
				   BPF_F_ADJ_ROOM_ENCAP_L2_ETH | BPF_F_ADJ_ROOM_NO_CSUM_RESET);
}

#endif
