/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The kernel path: what user space has decided, repeated in the kernel.
 *
 * Theory of operation: control mirrors its tables into maps (tables.h); six programs of traffic control read them.
 * Each takes over exactly those packets of which it can make every check that user space makes, with the same result,
 * and passes on all others: TC_ACT_UNSPEC, so that the next filter, and then user space or the host's stack, has them.
 * Nothing is refused here that user space would deliver, and nothing delivered that it would refuse. A seventh, the filter
 * of a socket (forgotten.h), reads the tables of flows.
 *
 *	out	pod --veth--> pod_out --flow known--> underlay
 *		                 \--> host's stack --> tunnel device --> tunnel_out --peer known--> underlay
 *		                                                               \--> user space
 *	in	underlay --> underlay_in --flow known--> pod
 *		                    |\--peer known--> ingress of the tunnel device --> host's stack --pod_in--> pod
 *		                    |\--peer known, super-packet: marked--> VXLAN device --> gro_in --> as above
 *		                     \--> user space's socket, on a private port
 *
 * Super-packets: the kernel's GRO merges VXLAN datagrams only for a VXLAN device, and only that device takes the
 * tunnel's bits off a super-packet; after bpf_skb_adjust_room they stay, and a pod's UDP is lost. So such a device has
 * the port of the format, and delivers, by gro_in, what underlay_in marked, and nothing else.
 *
 * Kernels: from 5.15 on. No loop remains after unrolling, no kfunc, no dynptr, no bpf_loop, no atomic that returns a
 * value (arm64 translates those only from 5.18 on). The youngest helpers are bpf_redirect_peer (5.10), bpf_csum_level
 * and the ring buffer (5.8), the youngest flag is BPF_F_ADJ_ROOM_ENCAP_L2_ETH (5.13); bpf_fib_lookup says by which
 * device also where it knows no neighbour from 5.10 on. Packet pointers are read again after each helper that may move
 * the packet. At most 248 bytes of stack are used. Of the helpers bpf_fib_lookup alone is GPL-only (gpl_only in
 * net/core/filter.c), and the licence below is compatible with the GPL. Headers are read and written as
 * 16- and 32-bit words: x86-64 and arm64 allow it at any address, and so does their verifier.
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "checksum.h"
#include "decapsulate.h"
#include "encapsulate.h"
#include "flow.h"
#include "forgotten.h"
#include "maps.h"
#include "parse.h"
#include "reasons.h"
#include "tables.h"

const char licence[] SEC("license") = "Dual MIT/GPL";

/* An IPv4 packet, and no VLAN's whose tag a device has taken off. */
static __always_inline bool is_plain_ipv4(const struct __sk_buff *skb)
{
	return skb->protocol == bpf_htons(ETH_P_IP) && !skb->vlan_present;
}

/* Whether the packet is left to user space because of its size, or because one was just before it in its flow. */
static __always_inline bool is_bulk_tcp(const struct settings *set, const struct inner *inner, __u64 now)
{
	__u32 place;
	__u64 *last;

	if (!(set->flags & KERNEL_PATH_BULK_TCP_PASSES) || inner->key.protocol != IPPROTO_TCP)
		return false;
	place = flow_hash(&inner->key) % LAST_MARKED;
	last = bpf_map_lookup_elem(&last_marked, &place);
	if (!last)
		return false;
	if (inner->segments > 1)
		*last = now;
	return *last && now - *last < LAST_MARKED_FOR;
}

/*
 * Pod to underlay. A pod's packet, at the host's end of its veth: of a flow that control has installed, it leaves at
 * once. What the host's stack would check of it is checked here: that it comes from the pod that has the address, to
 * the gateway, with a good header checksum, and that its TTL lasts.
 */
SEC("classifier/pod_out")
int pod_out(struct __sk_buff *skb)
{
	const struct settings *set = read_settings();
	__u64 now = bpf_ktime_get_ns();
	struct inner inner = {};
	struct iphdr *ip;
	struct flow *flow;
	struct peer *peer;
	struct pod *pod;
	void *data, *end;
	int reason;

	if (!set)
		return pass(PASS_OFF);
	reason = may_act(set, now);
	if (reason != ADMITTED)
		return pass(reason);
	if (!(set->flags & KERNEL_PATH_FLOWS))
		return pass(PASS_OFF);
	if (!is_plain_ipv4(skb))
		return pass(PASS_NOT_IPV4);
	reason = parse_inner(skb, sizeof(struct ethhdr), &inner);
	if (reason != ADMITTED)
		return pass(reason);
	if (!inner.is_flow)
		return pass(PASS_NO_FLOW);
	pod = bpf_map_lookup_elem(&pods, &inner.key.source);
	if (!pod || pod->ifindex != skb->ifindex)
		return pass(PASS_WRONG_POD);
	if (inner.ends) {
		struct flow_key back;

		reverse(&back, &inner.key);
		begin_or_end(&inner, &back, set, &flows_out, &flows_in);
		return pass(PASS_FLOW_ENDS);
	}
	flow = bpf_map_lookup_elem(&flows_out, &inner.key);
	if (!flow)
		return pass(PASS_NO_FLOW);
	if (is_bulk_tcp(set, &inner, now) && reaches_tunnel(skb, set, &inner.key))
		return pass(PASS_BULK_TCP);
	peer = bpf_map_lookup_elem(&peers, &flow->peer);
	if (!peer)
		return pass(PASS_STALE_FLOW);
	reason = follow_out(skb, flow, set, peer, pod, &inner.key, now);
	if (reason != ADMITTED)
		return pass(reason);
	if (!(peer->flags & PEER_SEND))
		return pass(PASS_PEER);
	if (inner.ttl <= 1)
		return pass(PASS_TTL);
	if (!fits(&inner, peer))
		return pass(PASS_TOO_BIG);

	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	ip = data + sizeof(struct ethhdr);
	if ((void *)(ip + 1) > end)
		return pass(PASS_MALFORMED);
	if (!same_mac(data, pod->host_mac) || !same_mac(data + ETH_ALEN, pod->pod_mac))
		return pass(PASS_MAC);
	if (header_sum(ip) != 0xffff)
		return pass(PASS_CHECKSUM);
	reason = check_unfinished(skb, sizeof(struct ethhdr), inner.key.protocol);
	if (reason != ADMITTED)
		return pass(reason);
	if (make_room(skb))
		return pass(PASS_REFUSED);

	data = (void *)(long)skb->data;
	ip = data + OUTER_BYTES;
	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return drop(OUTBOUND, DROP_UNDERLAY_REFUSED, inner.segments);
	copy_header(outer_at(data), flow);
	finish_header(outer_at(data), &inner);
	decrement_ttl(ip);
	count_flow(flow, &inner, now);
	count_sent(flow->peer, pod, inner.segments, inner.length);
	return bpf_redirect(set->underlay_ifindex, 0);
}

/*
 * Tunnel device to underlay: what the host's stack has routed to the tunnel device, behind its firewall and connection
 * tracking. The inner packet stands at `at`, behind a TAP's Ethernet header or at the start.
 */
static __always_inline int leave(struct __sk_buff *skb, __u32 at)
{
	const struct settings *set = read_settings();
	__u64 now = bpf_ktime_get_ns();
	struct inner inner = {};
	struct peer *peer;
	struct pod *pod;
	__u32 number;
	void *data;
	int reason;

	if (!set)
		return pass(PASS_OFF);
	reason = may_act(set, now);
	if (reason != ADMITTED)
		return pass(reason);
	if (!is_plain_ipv4(skb))
		return pass(PASS_NOT_IPV4);
	reason = parse_inner(skb, at, &inner);
	if (reason != ADMITTED)
		return pass(reason);
	if (is_bulk_tcp(set, &inner, now))
		return pass(PASS_BULK_TCP);
	if (!(find_local(inner.key.source) & LOCAL_SOURCE))
		return pass(PASS_SOURCE);
	if (find_local(inner.key.destination) & LOCAL_OURS)
		return pass(PASS_LOCAL);
	peer = find_peer(inner.key.destination, &number);
	if (!peer)
		return pass(PASS_NO_PEER);
	if (!(peer->flags & PEER_SEND))
		return pass(PASS_PEER);
	if (!fits(&inner, peer))
		return pass(PASS_TOO_BIG);
	reason = check_unfinished(skb, at, inner.key.protocol);
	if (reason != ADMITTED)
		return pass(reason);
	pod = bpf_map_lookup_elem(&pods, &inner.key.source);
	if (is_to_propose(set, now, &inner, &flows_out, pod, peer))
		post(EVENT_FLOW_OUT, number, set->epoch, 0, &inner.key);
	if (make_room(skb))
		return pass(PASS_REFUSED);

	if (!at && bpf_skb_change_head(skb, sizeof(struct ethhdr), 0))
		return drop(OUTBOUND, DROP_UNDERLAY_REFUSED, inner.segments);
	data = (void *)(long)skb->data;
	if (data + OUTER_BYTES > (void *)(long)skb->data_end)
		return drop(OUTBOUND, DROP_UNDERLAY_REFUSED, inner.segments);
	write_header(outer_at(data), set, peer, flow_hash(&inner.key));
	finish_header(outer_at(data), &inner);
	count_sent(number, pod, inner.segments, inner.length);
	return bpf_redirect(set->underlay_ifindex, 0);
}

SEC("classifier/tunnel_out")
int tunnel_out(struct __sk_buff *skb)
{
	return leave(skb, 0);
}

SEC("classifier/tunnel_out_ether")
int tunnel_out_ether(struct __sk_buff *skb)
{
	return leave(skb, sizeof(struct ethhdr));
}

/*
 * Passes a datagram on to user space. While a VXLAN device has the port of the format, user space listens on a port of
 * its own: the first fragment has it, which is enough. No checksum (zero) stays none; one that is not finished yet
 * covers the new port when it is; any other is changed. A sum that a device computed over the packet stays right with
 * it, and is not looked at without it.
 */
static __always_inline int to_service(struct __sk_buff *skb, const struct settings *set, __u32 udp,
				      enum pass_reason reason)
{
	__be16 port = set->private_port;

	if (!(set->flags & KERNEL_PATH_PRIVATE_PORT))
		return pass(reason);
	bpf_l4_csum_replace(skb, udp + offsetof(struct udphdr, check), set->vxlan_port, port,
			    BPF_F_MARK_MANGLED_0 | sizeof(port));
	bpf_skb_store_bytes(skb, udp + offsetof(struct udphdr, dest), &port, sizeof(port), 0);
	return pass(reason);
}

/* RFC 792 and RFC 1191; linux/icmp.h needs the headers of a C library. */
#define ICMP_UNREACHABLE 3
#define ICMP_FRAGMENTATION_NEEDED 4

struct icmp_report {
	__u8 type;
	__u8 code;
	__be16 check;
	__be16 unused;
	__be16 mtu;
	struct iphdr ip;
	struct udphdr udp;
};

/* Where the inner destination stands, from the ICMP header on, if the router quotes so much. */
#define QUOTED_DESTINATION \
	(sizeof(struct icmp_report) + sizeof(struct vxlan) + sizeof(struct ethhdr) + offsetof(struct iphdr, daddr))

/* Path reports are told at most once a second of a destination, and this often a second of all. */
#define PATH_REPORTS_A_SECOND 64

/*
 * Whether a report about `destination` may be told at `now`. No report is about the address 0, whose entry counts all. CPUs
 * that count at the same time, or an entry that made room for others, let a few more pass.
 */
static __always_inline bool may_report(__be32 destination, __u64 now)
{
	struct report_count first = { .second = now / 1000000000, .told = 1 };
	__be32 every = 0;
	struct report_count *all = bpf_map_lookup_elem(&reports, &every);
	struct report_count *last;

	if (all && all->second == first.second && all->told >= PATH_REPORTS_A_SECOND)
		return false;
	last = bpf_map_lookup_elem(&reports, &destination);
	if (last && last->second == first.second)
		return false;
	if (last)
		*last = first;
	else
		bpf_map_update_elem(&reports, &destination, &first, BPF_ANY);
	if (all && all->second == first.second) {
		all->told++;
		return true;
	}
	bpf_map_update_elem(&reports, &every, &first, BPF_ANY);
	return true;
}

/*
 * A router's report that a datagram of ours was too large for it: user space's sockets do not see those of datagrams
 * that the programs sent. Control does not prove it: it leaves the peer to user space for ten minutes, which makes
 * trials of the path of its own. Any host can forge one, so only what quotes such a datagram is told, of a path that
 * takes less than we send, and few of them (may_report). No table has peers by their underlay address: where the
 * router quotes as far as the inner header, the inner destination says which peer it is; one that quotes the 8 bytes
 * that RFC 792 demands cannot be told from a forger.
 */
static __always_inline void path_report(struct __sk_buff *skb, const struct settings *set, __u32 at)
{
	__u32 largest = set->inner_mtu + ROOM;
	struct icmp_report report;
	struct flow_key key = {};
	__be32 destination;
	struct peer *peer;
	__u32 number;

	if (bpf_skb_load_bytes(skb, at, &report, sizeof(report)))
		return;
	if (report.type != ICMP_UNREACHABLE || report.code != ICMP_FRAGMENTATION_NEEDED)
		return;
	if (report.ip.version != 4 || report.ip.ihl != 5 || report.ip.protocol != IPPROTO_UDP ||
	    report.ip.saddr != set->local || report.udp.dest != set->vxlan_port ||
	    (__u16)(bpf_ntohs(report.udp.source) - set->source_port_base) >= set->source_port_count)
		return;
	if (!bpf_skb_load_bytes(skb, at + QUOTED_DESTINATION, &destination, sizeof(destination))) {
		peer = find_peer(destination, &number);
		if (!peer || !(peer->flags & PEER_SEND) || peer->address != report.ip.daddr)
			return;
		largest = peer->mtu + ROOM;
	}
	if (bpf_ntohs(report.mtu) >= largest || !may_report(report.ip.daddr, bpf_ktime_get_ns()))
		return;
	key.source = report.ip.saddr;
	key.destination = report.ip.daddr;
	key.source_port = report.udp.source;
	key.destination_port = report.udp.dest;
	key.protocol = IPPROTO_UDP;
	post(EVENT_PATH_REPORT, 0, set->epoch, bpf_ntohs(report.mtu), &key);
}

/* Whether the VXLAN device must have the packet: see the head of this file, and LAST_MARKED_FOR in tables.h. Only a
 * socket verifies a checksum that no device has verified. */
static __always_inline bool must_be_marked(const struct __sk_buff *skb, const struct datagram *datagram,
					   const __u64 *marked, __u64 now)
{
	return !datagram->verified || skb->gso_size || (marked && *marked && now - *marked < LAST_MARKED_FOR);
}

/* Whether the flow, where its entry holds, needs no VXLAN device for it all the same. */
static __always_inline bool is_direct_tcp(const struct datagram *datagram, const struct flow *flow)
{
	return (flow->flags & FLOW_DIRECT_TCP) && datagram->verified && datagram->inner.key.protocol == IPPROTO_TCP;
}

/* A datagram of the format to us. `udp` is the place of its UDP header. */
static __always_inline int arrive(struct __sk_buff *skb, const struct settings *set, __u32 udp)
{
	struct datagram datagram = {};
	struct inner *inner = &datagram.inner;
	__u64 now = bpf_ktime_get_ns();
	struct flow *flow = NULL;
	struct peer *peer;
	struct pod *pod;
	__u64 *marked;
	__u32 number, place;
	bool mark;
	int reason;

	reason = may_act(set, now);
	if (reason != ADMITTED)
		return to_service(skb, set, udp, reason);
	reason = parse_datagram(skb, set, &datagram);
	if (reason != ADMITTED)
		return to_service(skb, set, udp, reason);
	/* The tunnel device takes no larger packet in one piece (is_skb_forwardable); user space may write one. Nor does
	 * a flow take more past the device than the host's stack would deliver of it. */
	if (!skb->gso_size && inner->length > set->inner_mtu)
		return to_service(skb, set, udp, PASS_TOO_BIG);
	place = flow_hash(&inner->key) % LAST_MARKED;
	marked = bpf_map_lookup_elem(&last_marked, &place);
	pod = bpf_map_lookup_elem(&pods, &inner->key.destination);
	if ((set->flags & KERNEL_PATH_FLOWS) && inner->is_flow)
		flow = bpf_map_lookup_elem(&flows_in, &inner->key);
	mark = must_be_marked(skb, &datagram, marked, now);

	if (flow && pod && !inner->ends && inner->ttl > 1 && (!mark || is_direct_tcp(&datagram, flow))) {
		peer = bpf_map_lookup_elem(&peers, &flow->peer);
		if (peer && follow_in(skb, flow, set, peer, pod, &inner->key, now) == ADMITTED &&
		    (peer->flags & PEER_RECEIVE) && peer->address == datagram.source &&
		    is_from_vtep(datagram.source_mac, set, peer)) {
			if (take_room(skb) != ADMITTED)
				return to_service(skb, set, udp, PASS_REFUSED);
			return deliver_to_pod(skb, flow, pod, inner, now);
		}
	}

	peer = find_peer(inner->key.source, &number);
	if (!peer)
		return to_service(skb, set, udp, PASS_NO_PEER);
	if (!(peer->flags & PEER_RECEIVE))
		return to_service(skb, set, udp, PASS_PEER);
	reason = check_addresses(inner, datagram.source, peer);
	if (reason != ADMITTED)
		return to_service(skb, set, udp, reason);
	if (!is_from_vtep(datagram.source_mac, set, peer))
		return to_service(skb, set, udp, PASS_MAC);
	if (inner->ends) {
		struct flow_key back;

		reverse(&back, &inner->key);
		begin_or_end(inner, &back, set, &flows_in, &flows_out);
	}
	if (mark) {
		if (marked)
			*marked = now;
		skb->mark = (skb->mark & ~MARK_BITS) | set->mark;
		return TC_ACT_UNSPEC;
	}
	if (take_room(skb) != ADMITTED)
		return to_service(skb, set, udp, PASS_REFUSED);
	return deliver_to_tunnel(skb, set, peer, number, pod, inner);
}

/* Underlay to pod or tunnel device. What is not addressed to us at the port of the format is passed on uncounted. */
SEC("classifier/underlay_in")
int underlay_in(struct __sk_buff *skb)
{
	const struct settings *set = read_settings();
	struct ethhdr *eth;
	struct iphdr *ip;
	__be16 port;
	__u32 at;

	if (!set || !is_plain_ipv4(skb) || skb->pkt_type != PACKET_HOST)
		return TC_ACT_UNSPEC;
	if (!linear(skb, sizeof(*eth) + sizeof(*ip)))
		return TC_ACT_UNSPEC;
	eth = (void *)(long)skb->data;
	ip = (void *)(eth + 1);
	if ((void *)(ip + 1) > (void *)(long)skb->data_end || eth->h_proto != bpf_htons(ETH_P_IP))
		return TC_ACT_UNSPEC;
	if (ip->daddr != set->local || (ip->frag_off & bpf_htons(IPV4_OFFSET)))
		return TC_ACT_UNSPEC;
	at = sizeof(*eth) + ip->ihl * 4;
	if (ip->protocol == IPPROTO_ICMP) {
		if (set->flags & KERNEL_PATH_ON)
			path_report(skb, set, at);
		return TC_ACT_UNSPEC;
	}
	if (ip->protocol != IPPROTO_UDP ||
	    bpf_skb_load_bytes(skb, at + offsetof(struct udphdr, dest), &port, sizeof(port)) || port != set->vxlan_port)
		return TC_ACT_UNSPEC;
	return arrive(skb, set, at);
}

/* What bpf_skb_get_tunnel_key fills: the head of struct bpf_tunnel_key that every kernel knows, in the byte order of
 * the machine. */
struct tunnel_key {
	__u32 id;
	__u32 remote;
};

/*
 * What the VXLAN device has decapsulated. The mark says that underlay_in has seen the outer packet; yet every check is
 * made again, for the kernel cuts an outer UDP super-packet before it decapsulates, and what begins at such a cut
 * underlay_in has not seen. Nothing is passed on: the host's stack would route what comes from the device, unchecked.
 */
SEC("classifier/gro_in")
int gro_in(struct __sk_buff *skb)
{
	const struct settings *set = read_settings();
	__u64 now = bpf_ktime_get_ns();
	struct tunnel_key tunnel = {};
	struct inner inner = {};
	struct flow *flow = NULL;
	const struct ethhdr *eth;
	struct peer *peer;
	struct pod *pod;
	__u32 number;
	int reason;

	/* Before the first drop: each counts wire packets. */
	reason = parse_inner(skb, sizeof(*eth), &inner);
	if (reason != ADMITTED)
		inner.segments = count_segments(skb);
	if (!set || (skb->mark & MARK_BITS) != set->mark || !set->mark)
		return drop(INBOUND, DROP_NOT_MARKED, inner.segments);
	skb->mark &= ~MARK_BITS;
	if (!is_plain_ipv4(skb))
		return drop(INBOUND, DROP_NOT_IP, inner.segments);
	if (reason != ADMITTED)
		return drop(INBOUND, DROP_MALFORMED, inner.segments);
	if (bpf_skb_get_tunnel_key(skb, (struct bpf_tunnel_key *)&tunnel, sizeof(tunnel), 0))
		return drop(INBOUND, DROP_UNKNOWN_PEER, inner.segments);
	if (bpf_htonl(tunnel.id << 8) != set->vni)
		return drop(INBOUND, DROP_WRONG_VNI, inner.segments);
	eth = (void *)(long)skb->data;
	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return drop(INBOUND, DROP_MALFORMED, inner.segments);
	if (!same_mac(eth->h_dest, set->vtep))
		return drop(INBOUND, DROP_NOT_OUR_MAC, inner.segments);
	peer = find_peer(inner.key.source, &number);
	if (!peer)
		return drop(INBOUND, DROP_NOT_PEERS_SOURCE, inner.segments);
	if (!is_from_vtep(eth->h_source, set, peer))
		return drop(INBOUND, DROP_BAD_SOURCE_MAC, inner.segments);
	reason = check_addresses(&inner, bpf_htonl(tunnel.remote), peer);
	if (reason != ADMITTED)
		return drop(INBOUND, reason == PASS_NOT_OURS ? DROP_NOT_OURS : DROP_NOT_PEERS_SOURCE, inner.segments);
	if (!skb->gso_size && inner.length > set->inner_mtu)
		return drop(INBOUND, DROP_BAD_SUPER_PACKET, inner.segments);

	pod = bpf_map_lookup_elem(&pods, &inner.key.destination);
	if ((set->flags & KERNEL_PATH_FLOWS) && inner.is_flow && !inner.ends)
		flow = bpf_map_lookup_elem(&flows_in, &inner.key);
	/* underlay_in may have chosen the packet to be judged anew: then it must not take the short path here. */
	if (flow && pod && inner.ttl > 1 && flow->peer == number && may_act(set, now) == ADMITTED &&
	    follow_in(skb, flow, set, peer, pod, &inner.key, now) == ADMITTED && !flow->probing) {
		/* The frame was to our VTEP, which is not the MAC of the VXLAN device. */
		bpf_skb_change_type(skb, PACKET_HOST);
		return deliver_to_pod(skb, flow, pod, &inner, now);
	}
	return deliver_to_tunnel(skb, set, peer, number, pod, &inner);
}

/*
 * Host's stack to pod, at the host's end of its veth. What comes here the host's rules have let pass, and its routes
 * lead to this pod: it is behind forward and postrouting, as the egress of the tunnel device is. So here, and nowhere
 * before the stack, a flow to a pod is proposed: a flow whose packets a new rule drops never comes this far, and
 * connection tracking, which sees packets before the rules do, would go on to say that it is established. Nothing is
 * carried, changed or counted here; what deliver_to_pod sends does not come here.
 */
SEC("classifier/pod_in")
int pod_in(struct __sk_buff *skb)
{
	const struct settings *set = read_settings();
	__u64 now = bpf_ktime_get_ns();
	struct inner inner = {};
	struct peer *peer;
	struct pod *pod;
	__u32 number;

	if (!set || may_act(set, now) != ADMITTED || !(set->flags & KERNEL_PATH_FLOWS) || !is_plain_ipv4(skb))
		return TC_ACT_UNSPEC;
	if (parse_inner(skb, sizeof(struct ethhdr), &inner) != ADMITTED || !inner.is_flow || inner.ends)
		return TC_ACT_UNSPEC;
	pod = bpf_map_lookup_elem(&pods, &inner.key.destination);
	if (!pod || pod->ifindex != skb->ifindex || (find_local(inner.key.source) & LOCAL_OURS))
		return TC_ACT_UNSPEC;
	peer = find_peer(inner.key.source, &number);
	if (!peer || !(peer->flags & PEER_RECEIVE) || !is_to_propose(set, now, &inner, &flows_in, pod, peer))
		return TC_ACT_UNSPEC;
	post(ends_at_socket(skb, pod, &inner.key) ? EVENT_FLOW_IN_SOCKET : EVENT_FLOW_IN, number, set->epoch, 0,
	     &inner.key);
	return TC_ACT_UNSPEC;
}

/* Filter of the flow thread's socket for forgotten connections: how many bytes of an announcement the thread is to have. */
SEC("socket/forgotten")
int forgotten(struct __sk_buff *skb)
{
	return may_concern_flow(skb) ? skb->len : 0;
}
