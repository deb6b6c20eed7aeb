/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Datagrams of peers: the checks of user space's inbound stages, and the way to the pod or the tunnel device. */
#ifndef TARTAN_DECAPSULATE_H
#define TARTAN_DECAPSULATE_H

#include "encapsulate.h"
#include "flow.h"

#define ECN_ECT1 1
#define ECN_ECT0 2
#define ECN_CE 3

/* A datagram of the format that is addressed to us. */
struct datagram {
	struct inner inner;
	/* Who sent it, by the outer header and by the frame. */
	__be32 source;
	__u8 source_mac[ETH_ALEN] __attribute__((aligned(2)));
	/* The outer UDP checksum needs no socket to verify it. */
	bool verified;
};

/* What an unfinished UDP checksum holds: the sum of the pseudo-header (RFC 768). */
static __always_inline __u16 pseudo_sum(const struct iphdr *ip, const struct udphdr *udp)
{
	__u64 sum = (__u64)ip->saddr + ip->daddr + bpf_htons(IPPROTO_UDP) + udp->len;

	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return fold(sum);
}

/*
 * Whether the outer UDP checksum is none, or has been verified by a device, or is of a sender on this machine: that one
 * finishes the outer sum around an unfinished inner one (lco_csum), and the kernel takes such a packet for verified
 * too. An outer sum that is itself unfinished must stay with its header.
 */
static __always_inline bool is_verified(struct __sk_buff *skb, __u16 check, __u16 pseudo)
{
	if (!check || bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0)
		return true;
	return !skb->gso_size && check != pseudo && is_unfinished(skb, sizeof(struct ethhdr)) == UNFINISHED;
}

static __always_inline bool is_unicast_mac(const __u8 *mac)
{
	return !(mac[0] & 1) && (mac[0] | mac[1] | mac[2] | mac[3] | mac[4] | mac[5]);
}

/* The frame's source is the VTEP of the peer; nothing that its lease says makes a group's or our own MAC a source. */
static __always_inline bool is_from_vtep(const __u8 *source, const struct settings *set, const struct peer *peer)
{
	return same_mac(source, peer->vtep) && is_unicast_mac(source) && !same_mac(source, set->vtep);
}

/* Everything of the datagram that can be checked without tables of peers and pods. */
static __always_inline int parse_datagram(struct __sk_buff *skb, const struct settings *set, struct datagram *datagram)
{
	struct inner *inner = &datagram->inner;
	__u16 check, pseudo;
	struct outer outer;
	__u32 length;
	__u8 ecn;
	int reason;

	if (!linear(skb, OUTER_BYTES))
		return PASS_MALFORMED;
	if ((void *)(long)skb->data + OUTER_BYTES > (void *)(long)skb->data_end)
		return PASS_MALFORMED;
	outer = outer_at((void *)(long)skb->data);
	/* The caller has seen that it is UDP, and no later fragment. */
	if (outer.ip->version != 4 || outer.ip->ihl < 5)
		return PASS_MALFORMED;
	if (outer.ip->ihl > 5)
		return PASS_OPTIONS;
	if (outer.ip->frag_off & bpf_htons(IPV4_FRAGMENT))
		return PASS_FRAGMENT;
	length = bpf_ntohs(outer.ip->tot_len);
	if (length + sizeof(*outer.eth) != skb->len || bpf_ntohs(outer.udp->len) + sizeof(*outer.ip) != length)
		return PASS_MALFORMED;
	if (header_sum(outer.ip) != 0xffff)
		return PASS_CHECKSUM;
	if (outer.vxlan->flags != bpf_htonl(VXLAN_FLAGS) || outer.vxlan->vni != set->vni)
		return PASS_VXLAN;
	if (!same_mac(outer.frame->h_dest, set->vtep))
		return PASS_MAC;
	if (outer.frame->h_proto != bpf_htons(ETH_P_IP))
		return PASS_NOT_IPV4;
	datagram->source = outer.ip->saddr;
	copy_mac(datagram->source_mac, outer.frame->h_source);
	ecn = outer.ip->tos & ECN_BITS;
	check = outer.udp->check;
	pseudo = pseudo_sum(outer.ip, outer.udp);

	reason = parse_inner(skb, OUTER_BYTES, inner);
	if (reason != ADMITTED)
		return reason;
	datagram->verified = is_verified(skb, check, pseudo);
	/* RFC 6040 section 4.2: the codepoints at which the inner one changes, or the packet is dropped. */
	if (ecn == ECN_CE || (ecn == ECN_ECT1 && (inner->tos & ECN_BITS) == ECN_ECT0))
		return PASS_CONGESTION;
	return ADMITTED;
}

/* Whether the peer that has the inner source sent it, and the inner destination is here. */
static __always_inline int check_addresses(const struct inner *inner, __be32 source, const struct peer *peer)
{
	if (peer->address != source || (find_local(inner->key.source) & LOCAL_OURS))
		return PASS_NOT_PEERS_SOURCE;
	if (!(find_local(inner->key.destination) & LOCAL_DESTINATION))
		return PASS_NOT_OURS;
	return ADMITTED;
}

/* Takes the outer headers away; the Ethernet header stays, and the state of the inner checksum. */
static __always_inline int take_room(struct __sk_buff *skb)
{
	if (bpf_skb_adjust_room(skb, -(__s32)ROOM, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET))
		return PASS_REFUSED;
	/* What a device verified beyond the outer checksum holds; fails where it verified nothing. */
	bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC);
	return ADMITTED;
}

/* To the pod, past the host's stack. Behind a 14-byte Ethernet header stands the inner packet. */
static __always_inline int deliver_to_pod(struct __sk_buff *skb, struct flow *flow, const struct pod *pod,
					  const struct inner *inner, __u64 now)
{
	struct ethhdr *eth = (void *)(long)skb->data;
	struct iphdr *ip = (void *)(eth + 1);

	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return drop(INBOUND, DROP_DEVICE_REFUSED, inner->segments);
	copy_mac(eth->h_dest, flow->header);
	copy_mac(eth->h_source, flow->header + ETH_ALEN);
	eth->h_proto = bpf_htons(ETH_P_IP);
	decrement_ttl(ip);
	count_flow(flow, inner, now);
	count_delivered(flow->peer, pod, inner->segments, inner->length);
	return bpf_redirect_peer(pod->ifindex, 0);
}

/* To the host's stack, as arriving on the tunnel device. A TUN takes the packet alone (bpf_redirect drops the
 * header). */
static __always_inline int deliver_to_tunnel(struct __sk_buff *skb, const struct settings *set,
					     const struct peer *peer, __u32 number, const struct pod *pod,
					     const struct inner *inner)
{
	struct ethhdr *eth = (void *)(long)skb->data;

	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return drop(INBOUND, DROP_DEVICE_REFUSED, inner->segments);
	/* A TAP takes only frames to its own MAC for the host's. */
	copy_mac(eth->h_dest, set->tunnel_mac);
	copy_mac(eth->h_source, peer->vtep);
	eth->h_proto = bpf_htons(ETH_P_IP);
	count_delivered(number, pod, inner->segments, inner->length);
	return bpf_redirect(set->tunnel_ifindex, BPF_F_INGRESS);
}

#endif
