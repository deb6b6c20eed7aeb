/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Checksums of headers that programs change, and checksums that are not finished yet. */
#ifndef TARTAN_CHECKSUM_H
#define TARTAN_CHECKSUM_H

#include "reasons.h"

#define IPV4_CHECKSUM offsetof(struct iphdr, check)

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* The ones' complement sum of an IPv4 header without options: 0xffff where its checksum is right (RFC 1071). */
static __always_inline __u16 header_sum(const struct iphdr *ip)
{
	const __u16 *words = (const __u16 *)ip;
	__u32 sum = 0;

#pragma unroll
	for (int i = 0; i < 10; i++)
		sum += words[i];
	return fold(sum);
}

/* As a router does (ip_decrease_ttl): the checksum follows, so that a wrong one stays wrong. */
static __always_inline void decrement_ttl(struct iphdr *ip)
{
	__u32 check = ip->check + bpf_htons(0x0100);

	ip->check = check + (check >= 0xffff);
	ip->ttl--;
}

/* Whether the packet's checksum is unfinished. */
enum unfinished {
	FINISHED,
	UNFINISHED,
	UNKNOWN,
};

/*
 * A program cannot read the state of a packet's checksum, but bpf_l4_csum_replace depends on it: it leaves the sum
 * alone if the checksum is unfinished (CHECKSUM_PARTIAL; inet_proto_csum_replace4, for a change outside of the
 * pseudo-header), and changes it otherwise. What it is asked to change is the checksum of the IP header at `at`, which
 * is put back.
 */
static __always_inline enum unfinished is_unfinished(struct __sk_buff *skb, __u32 at)
{
	struct iphdr *ip = (void *)(long)skb->data + at;
	__u16 before, after;

	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return UNKNOWN;
	before = ip->check;
	if (bpf_l4_csum_replace(skb, at + IPV4_CHECKSUM, 0, 1, sizeof(__u16)))
		return UNKNOWN;
	ip = (void *)(long)skb->data + at;
	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return UNKNOWN;
	after = ip->check;
	ip->check = before;
	return after == before ? UNFINISHED : FINISHED;
}

/* Bytes in front of the checksum field of such a transport header; of another, 0: its fields are not known. */
static __always_inline __u32 checksum_field(__u8 protocol)
{
	if (protocol == IPPROTO_TCP)
		return offsetof(struct tcphdr, check);
	return protocol == IPPROTO_UDP ? offsetof(struct udphdr, check) : 0;
}

/*
 * Whether an unfinished checksum of the packet with the IP header at `at` lies in the checksum field of its transport
 * header, or behind that. A pod may name any place for it (PACKET_VNET_HDR), and whatever the packet leaves through
 * writes there after every check: into the inner addresses, ports or TCP's flags, which the host's rules have looked
 * at. Behind the field, a pod that runs a tunnel has one in the payload. A program cannot read csum_start either; but
 * bpf_skb_change_tail refuses with EINVAL, before it looks at anything else, to cut off the place of an unfinished
 * checksum (__bpf_skb_min_len). A packet that it does cut is refused as Malformed by user space or the host's stack.
 */
static __always_inline int check_unfinished(struct __sk_buff *skb, __u32 at, __u8 protocol)
{
	__u32 field = at + sizeof(struct iphdr) + checksum_field(protocol);
	enum unfinished state;

	/* Verified by a device: nothing is to be finished. */
	if (bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0)
		return ADMITTED;
	state = is_unfinished(skb, at);
	if (state != UNFINISHED)
		return state == FINISHED ? ADMITTED : PASS_REFUSED;
	/* None of its two bytes lies before the field if the packet may not end after the first byte of that. */
	return bpf_skb_change_tail(skb, field + 1, 0) == -EINVAL ? ADMITTED : PASS_CHECKSUM;
}

#endif
