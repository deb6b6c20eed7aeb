/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Flows that pass between a pod and the underlay.
 *
 * Theory of operation: control installs a flow after it has checked what the host's stack would do with its packets,
 * and says until when. A program follows the entry only while everything that control looked at is as it was: the epoch
 * (rules, routes, links), the generation of the peer and that of the pod; each is one word that control writes. Half a
 * minute before an entry ends, and where the service that judged it has ended and another one goes on with its flows, one
 * packet a second takes the slow path, so that the rules see it, and control is asked anew; not of a flow with few packets,
 * whose entry ends. Control learns of flows from `seen` on the slow path.
 *
 * While neither service nor keeper runs, the tunnel device has no carrier, and the host's stack refuses what it would
 * route there: then no packet of a flow is passed on for judgement, or as bulk, and entries end unrenewed.
 */
#ifndef TARTAN_FLOW_H
#define TARTAN_FLOW_H

#include "maps.h"
#include "parse.h"

/* Whether all is as it was when control judged the flow. `pod` is the pod that has the local address, and `peer` what the
 * entry names. */
static __always_inline bool is_as_judged(const struct flow *flow, const struct settings *set, const struct peer *peer,
					 const struct pod *pod)
{
	__u32 epoch = set->epoch, left = epoch - set->oldest_epoch;

	/* Epochs wrap. While control writes the entry a program may see an oldest epoch that is later than the present one:
	 * then only flows of the present one are followed. */
	if ((__s32)left < 0)
		left = 0;
	return epoch - flow->epoch <= left && flow->peer_generation == peer->generation &&
	       flow->pod_generation == pod->generation && flow->ifindex == pod->ifindex;
}

/* Whether the entry holds. */
static __always_inline bool is_live(const struct flow *flow, const struct settings *set, const struct peer *peer,
				    const struct pod *pod, __u64 now)
{
	return now < flow->until && is_as_judged(flow, set, peer, pod);
}

/* AF_INET of sys/socket.h, which needs the headers of a C library. */
#define FAMILY_IPV4 2

/* The device by which the host's stack routes what comes from the pod's `address` to `remote`; 0 where it does not. */
static __always_inline __u32 routed_by(struct __sk_buff *skb, __u32 ifindex, __be32 address, __be32 remote)
{
	struct bpf_fib_lookup way = {
		.family = FAMILY_IPV4,
		.ifindex = ifindex,
		.ipv4_src = address,
		.ipv4_dst = remote,
	};

	switch (bpf_fib_lookup(skb, &way, sizeof(way), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_NO_NEIGH:
	/* What arrives still has its outer headers. */
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return way.ifindex;
	default:
		return 0;
	}
}

/* Whether a packet of a pod reaches the tunnel device if it is passed on. */
static __always_inline bool reaches_tunnel(struct __sk_buff *skb, const struct settings *set, const struct flow_key *key)
{
	return routed_by(skb, skb->ifindex, key->source, key->destination) == set->tunnel_ifindex;
}

/* Whether the flow's next packet is to take the slow path, so that the rules and connection tracking see it. */
static __always_inline bool is_probe_due(struct flow *flow, const struct settings *set, __u64 now)
{
	bool is_wanted = flow->epoch != set->epoch || flow->until - now < PROBE_BEFORE;

	if (!is_wanted || now - flow->probed < PROBE_EVERY)
		return false;
	flow->probed = now;
	return true;
}

/* The flow's next packet takes the slow path: whether control is asked, too. To judge a flow anew takes 58 us, more than the
 * fast path saves half a minute's packets of one that come PROBE_SPARSE apart. */
static __always_inline int pass_probe(struct flow *flow, __u64 now)
{
	flow->probing = now - flow->last_seen < PROBE_SPARSE;
	return PASS_PROBE;
}

/* ADMITTED if the packet of the pod takes the fast path, or why not. */
static __always_inline int follow_out(struct __sk_buff *skb, struct flow *flow, const struct settings *set,
				      const struct peer *peer, const struct pod *pod, const struct flow_key *key,
				      __u64 now)
{
	if (!is_live(flow, set, peer, pod, now))
		return PASS_STALE_FLOW;
	if (!is_probe_due(flow, set, now) || !reaches_tunnel(skb, set, key))
		return ADMITTED;
	return pass_probe(flow, now);
}

/* The same of a packet to the pod. The stack takes it where it has a way back, by whichever device. */
static __always_inline int follow_in(struct __sk_buff *skb, struct flow *flow, const struct settings *set,
				     const struct peer *peer, const struct pod *pod, const struct flow_key *key,
				     __u64 now)
{
	if (!is_live(flow, set, peer, pod, now))
		return PASS_STALE_FLOW;
	if (!is_probe_due(flow, set, now) || !routed_by(skb, flow->ifindex, key->destination, key->source))
		return ADMITTED;
	return pass_probe(flow, now);
}

/* Two CPUs may count for one flow. */
static __always_inline void count_flow(struct flow *flow, const struct inner *inner, __u64 now)
{
	flow->last_seen = now;
	__sync_fetch_and_add(&flow->packets, inner->segments);
	__sync_fetch_and_add(&flow->bytes, inner->length);
}

static __always_inline void reverse(struct flow_key *to, const struct flow_key *from)
{
	__builtin_memset(to, 0, sizeof(*to));
	to->source = from->destination;
	to->destination = from->source;
	to->source_port = from->destination_port;
	to->destination_port = from->source_port;
	to->protocol = from->protocol;
}

/* Tells control; a full ring forgets it. */
static __always_inline void post(__u32 kind, __u32 peer, __u32 epoch, __u32 mtu, const struct flow_key *key)
{
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event)
		return;
	event->kind = kind;
	event->peer = peer;
	event->epoch = epoch;
	event->mtu = mtu;
	event->flow = *key;
	bpf_ringbuf_submit(event, 0);
}

static __always_inline struct seen_set *seen_set_of(const struct flow_key *key, const struct settings *set)
{
	__u32 place = seen_place(key, set->mark);

	return bpf_map_lookup_elem(&seen, &place);
}

/* Which place of its set is the flow's; never 0. */
static __always_inline __u32 seen_tag(const struct flow_key *key)
{
	__u32 hash = flow_hash(key);

	return hash ? hash : 1;
}

static __always_inline void forget_seen(const struct flow_key *key, const struct settings *set)
{
	struct seen_set *places = seen_set_of(key, set);
	__u32 tag = seen_tag(key);

	if (!places)
		return;
#pragma clang loop unroll(full)
	for (int i = 0; i < SEEN_PLACES; i++) {
		if (places->places[i].tag == tag)
			places->places[i].packets = 0;
	}
}

/* This packet begins or ends a flow, whose other direction is `back`: from now on the host's stack has both. To remove what is
 * not there would cost a lock; most connections are too short to have an entry. Those that have the same ports one after the
 * other are not counted as one: each direction begins with a SYN of its own. */
static __always_inline void begin_or_end(const struct inner *inner, const struct flow_key *back, const struct settings *set,
					 void *flows, void *flows_back)
{
	if (bpf_map_lookup_elem(flows, &inner->key))
		bpf_map_delete_elem(flows, &inner->key);
	if (bpf_map_lookup_elem(flows_back, back))
		bpf_map_delete_elem(flows_back, back);
	if (inner->ends & TCP_SYN)
		forget_seen(&inner->key, set);
}

/* How long ago the place was used; 0 where another CPU, whose clock is ahead, has just used it. */
static __always_inline __u32 unused_for(const struct seen *place, __u32 now)
{
	__u32 passed = now - place->used;

	return place->tag && passed > -SEEN_KEPT ? 0 : passed;
}

/* Counts a packet of a flow without entry: how many it makes in this epoch; 0 where it has no place. */
static __always_inline __u32 count_seen(const struct flow_key *key, const struct settings *set, __u64 time)
{
	struct seen_set *places = seen_set_of(key, set);
	__u32 tag = seen_tag(key), now = time >> 20, longest = 0;
	struct seen *place = NULL;

	if (!places)
		return 0;
#pragma clang loop unroll(full)
	for (int i = 0; i < SEEN_PLACES; i++) {
		struct seen *other = &places->places[i];
		__u32 passed = unused_for(other, now);

		if (other->tag == tag) {
			place = other;
			break;
		}
		if (!place || passed > longest) {
			place = other;
			longest = passed;
		}
	}
	if (!place)
		return 0;
	if (place->tag != tag && place->tag && longest < SEEN_KEPT && bpf_get_prandom_u32() % SEEN_CHANCE)
		return 0;
	if (place->tag != tag || place->epoch != set->epoch) {
		place->tag = tag;
		place->epoch = set->epoch;
		place->packets = 0;
	}
	place->used = now;
	return ++place->packets;
}

/* Whether this packet of a flow without entry is one at which the flow is proposed. */
static __always_inline bool is_proposed_at(__u32 packets, __u32 flow_after)
{
	__u32 times;

	/* Another CPU may count the same packet number: then the flow is proposed twice, or at the next power. */
	if (!flow_after || !packets || packets % flow_after)
		return !flow_after;
	times = packets / flow_after;
	return times % PROPOSE_MOST == 0 || (times & (times - 1)) == 0;
}

/*
 * A packet of a possible flow on the slow path: whether the flow is to be proposed to control. `flows` has its entry, if
 * there is one. Only a pod of this node whose packets may leave the stack out has flows: `pod` is NULL of what is no pod.
 */
static __always_inline bool is_to_propose(const struct settings *set, __u64 now, const struct inner *inner, void *flows,
					  const struct pod *pod, const struct peer *peer)
{
	struct flow *flow;

	if (!(set->flags & KERNEL_PATH_FLOWS) || !pod || !pod->ifindex || !inner->is_flow || inner->ends)
		return false;
	flow = bpf_map_lookup_elem(flows, &inner->key);
	if (flow && is_as_judged(flow, set, peer, pod)) {
		if (now < flow->until) {
			/* Other packets than the probe come here too: too large, say. */
			if (!flow->probing)
				return false;
			flow->probing = 0;
			return true;
		}
		/* It was not refused: its entry came to its end, and it is counted from the start. */
		if (flow->until) {
			flow->until = 0;
			forget_seen(&inner->key, set);
		}
	}
	return is_proposed_at(count_seen(&inner->key, set, now), set->flow_after);
}

/*
 * Whether a socket of the pod has the TCP connection. Then the pod takes its packets, and forwards none: another device
 * would meet the tunnel's bits that a super-packet keeps (FLOW_DIRECT_TCP). A proxy's socket that was given the packets
 * by a rule of the pod has other ports, and is not found.
 */
static __always_inline bool ends_at_socket(struct __sk_buff *skb, const struct pod *pod, const struct flow_key *key)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket;
	bool found;

	if (key->protocol != IPPROTO_TCP || pod->namespace == NO_NAMESPACE)
		return false;
	tuple.ipv4.saddr = key->source;
	tuple.ipv4.daddr = key->destination;
	tuple.ipv4.sport = key->source_port;
	tuple.ipv4.dport = key->destination_port;
	socket = bpf_sk_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), pod->namespace, 0);
	if (!socket)
		return false;
	/* A listener is found too. */
	found = socket->state == BPF_TCP_ESTABLISHED;
	bpf_sk_release(socket);
	return found;
}

#endif
