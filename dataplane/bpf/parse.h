/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The inner packet: what it is, and whether a program may repeat what user space does with it. */
#ifndef TARTAN_PARSE_H
#define TARTAN_PARSE_H

#include "reasons.h"
#include "tables.h"

#define IPV4_HEADER sizeof(struct iphdr)
#define IPV4_DONT_FRAGMENT 0x4000
/* MF and the fragment offset: not a whole packet. */
#define IPV4_FRAGMENT 0x3fff
#define IPV4_OFFSET 0x1fff

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/* An inner packet, understood. */
struct inner {
	/* Ports only of TCP and UDP. */
	struct flow_key key;
	/* Bytes of the packet, and of its largest wire packet. */
	__u32 length;
	__u32 wire;
	/* Wire packets: 1, or what a super-packet is cut into. */
	__u32 segments;
	__u8 tos;
	__u8 ttl;
	/* UDP, or TCP of a connection, with a whole header: may be a flow. Of TCP, connection tracking knows no packet
	 * without ACK but one that begins or ends a connection (tcp_valid_flags): the host's rules must see others. */
	__u8 is_flow;
	/* SYN, FIN or RST. */
	__u8 ends;
};

/* Whether the first `length` bytes lie in one piece, so that they may be read; makes it so where the packet has
 * them. */
static __always_inline bool linear(struct __sk_buff *skb, __u32 length)
{
	if ((void *)(long)skb->data + length <= (void *)(long)skb->data_end)
		return true;
	return !bpf_skb_pull_data(skb, length);
}

/*
 * Wire packets of a packet whose headers are not understood. The kernel's own count, which its GRO sets; a super-packet
 * that a pod cut itself has none (SKB_GSO_DODGY), and is as many as its length holds, headers included.
 */
static __always_inline __u32 count_segments(const struct __sk_buff *skb)
{
	if (!skb->gso_size)
		return 1;
	if (skb->gso_segs)
		return skb->gso_segs;
	return (skb->len + skb->gso_size - 1) / skb->gso_size;
}

/* Whether one host may have the address: not unspecified, loopback, link-local, multicast, reserved or broadcast. */
static __always_inline bool is_unicast(__be32 address)
{
	__u32 host = bpf_ntohl(address);
	__u32 first = host >> 24;

	return first != 0 && first != 127 && first < 224 && host >> 16 != 0xa9fe;
}


/*
 * Bytes of the headers in front of the payload that a super-packet is cut into. The kernel's length of a super-packet
 * is no measure of what leaves: each wire packet is these headers and gso_size bytes at most.
 */
static __always_inline int parse_transport(struct __sk_buff *skb, __u32 at, struct inner *inner, __u32 *headers)
{
	void *data, *end;

	*headers = 0;
	if (inner->key.protocol == IPPROTO_TCP) {
		struct tcphdr *tcp;
		__u8 flags;

		if (inner->length < IPV4_HEADER + sizeof(*tcp) || !linear(skb, at + IPV4_HEADER + sizeof(*tcp)))
			return PASS_MALFORMED;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		tcp = data + at + IPV4_HEADER;
		if ((void *)(tcp + 1) > end)
			return PASS_MALFORMED;
		*headers = IPV4_HEADER + tcp->doff * 4;
		if (tcp->doff < 5 || *headers > inner->length)
			return PASS_MALFORMED;
		inner->key.source_port = tcp->source;
		inner->key.destination_port = tcp->dest;
		flags = ((__u8 *)tcp)[13];
		inner->ends = flags & (TCP_FIN | TCP_SYN | TCP_RST);
		inner->is_flow = inner->ends || (flags & TCP_ACK);
	} else if (inner->key.protocol == IPPROTO_UDP) {
		struct udphdr *udp;

		*headers = IPV4_HEADER + sizeof(*udp);
		if (inner->length < *headers || !linear(skb, at + IPV4_HEADER + sizeof(*udp)))
			return PASS_MALFORMED;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		udp = data + at + IPV4_HEADER;
		if ((void *)(udp + 1) > end)
			return PASS_MALFORMED;
		if (bpf_ntohs(udp->len) != inner->length - IPV4_HEADER)
			return PASS_MALFORMED;
		inner->key.source_port = udp->source;
		inner->key.destination_port = udp->dest;
		inner->is_flow = 1;
	}
	return ADMITTED;
}

/*
 * The inner packet at `at`, to the end of the buffer. ADMITTED, or why it is left to user space: what has options, is a
 * fragment, has bytes behind it or lengths that disagree.
 */
static __always_inline int parse_inner(struct __sk_buff *skb, __u32 at, struct inner *inner)
{
	__u32 headers, payload;
	struct iphdr *ip;
	void *data, *end;
	int reason;

	if (!linear(skb, at + IPV4_HEADER))
		return PASS_MALFORMED;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	ip = data + at;
	if ((void *)(ip + 1) > end)
		return PASS_MALFORMED;
	if (ip->version != 4)
		return PASS_NOT_IPV4;
	if (ip->ihl < 5)
		return PASS_MALFORMED;
	if (ip->ihl > 5)
		return PASS_OPTIONS;
	inner->length = bpf_ntohs(ip->tot_len);
	if (inner->length < IPV4_HEADER || at + inner->length != skb->len)
		return PASS_MALFORMED;
	if (ip->frag_off & bpf_htons(IPV4_FRAGMENT))
		return PASS_FRAGMENT;
	if (!is_unicast(ip->saddr) || !is_unicast(ip->daddr))
		return PASS_NOT_UNICAST;
	inner->key.source = ip->saddr;
	inner->key.destination = ip->daddr;
	inner->key.protocol = ip->protocol;
	inner->tos = ip->tos;
	inner->ttl = ip->ttl;

	reason = parse_transport(skb, at, inner, &headers);
	if (reason != ADMITTED)
		return reason;
	inner->wire = inner->length;
	inner->segments = 1;
	if (!skb->gso_size)
		return ADMITTED;
	/* gso_segs is 0 of a packet that a pod cut itself (SKB_GSO_DODGY), so the count is computed. */
	payload = inner->length - headers;
	if (!headers || !payload)
		return PASS_SUPER_PACKET;
	if (payload > skb->gso_size) {
		inner->wire = headers + skb->gso_size;
		inner->segments = (payload + skb->gso_size - 1) / skb->gso_size;
	}
	return ADMITTED;
}

#endif
