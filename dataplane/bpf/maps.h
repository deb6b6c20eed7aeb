/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The tables as the kernel sees them, and counting. Sizes that depend on the cluster are set by the loader. */
#ifndef TARTAN_MAPS_H
#define TARTAN_MAPS_H

#include "reasons.h"
#include "tables.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, __u32);
} fib SEC(".maps"), local SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct peer);
} peers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __be32);
	__type(value, struct pod);
} pods SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows_out SEC(".maps"), flows_in SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SEEN_SETS);
	__type(key, __u32);
	__type(value, struct seen_set);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __be32);
	__type(value, struct report_count);
} reports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LAST_MARKED);
	__type(key, __u32);
	__type(value, __u64);
} last_marked SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PASS_REASONS);
	__type(key, __u32);
	__type(value, __u64);
} passes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct traffic);
} peer_counts SEC(".maps"), pod_counts SEC(".maps");

static __always_inline struct settings *read_settings(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&settings, &first);
}

/* Traffic control runs programs with bottom halves disabled, so nothing interrupts a per-CPU addition that adds too. */
static __always_inline void count(__u32 place, __u64 amount)
{
	__u64 *word = bpf_map_lookup_elem(&counters, &place);

	if (word)
		*word += amount;
}

/* Passes the packet on: the next filter, then user space or the host's stack has it. */
static __always_inline int pass(enum pass_reason reason)
{
	__u32 place = reason;
	__u64 *word = bpf_map_lookup_elem(&passes, &place);

	if (word)
		*word += 1;
	return TC_ACT_UNSPEC;
}

static __always_inline int drop(__u32 direction, enum drop_reason reason, __u32 segments)
{
	count(direction + RECEIVED, segments);
	count(direction + DROPS + reason, segments);
	return TC_ACT_SHOT;
}

/* Counts what leaves for peer number `peer`, or what of it arrives: `segments` wire packets, `bytes` inner bytes. */
static __always_inline void count_sent(__u32 peer, const struct pod *pod, __u32 segments, __u32 bytes)
{
	struct traffic *traffic = bpf_map_lookup_elem(&peer_counts, &peer);

	count(OUTBOUND + RECEIVED, segments);
	count(OUTBOUND + SENT, segments);
	if (traffic) {
		traffic->sent_packets += segments;
		traffic->sent_bytes += bytes;
	}
	if (!pod)
		return;
	traffic = bpf_map_lookup_elem(&pod_counts, &pod->number);
	if (traffic) {
		traffic->sent_packets += segments;
		traffic->sent_bytes += bytes;
	}
}

static __always_inline void count_delivered(__u32 peer, const struct pod *pod, __u32 segments, __u32 bytes)
{
	struct traffic *traffic = bpf_map_lookup_elem(&peer_counts, &peer);

	count(INBOUND + RECEIVED, segments);
	count(INBOUND + DELIVERED, segments);
	if (traffic) {
		traffic->received_packets += segments;
		traffic->received_bytes += bytes;
	}
	if (!pod)
		return;
	traffic = bpf_map_lookup_elem(&pod_counts, &pod->number);
	if (traffic) {
		traffic->received_packets += segments;
		traffic->received_bytes += bytes;
	}
}

/* Whether programs may act at `now`: switched on, by a service that lives or lived a minute ago. */
static __always_inline int may_act(const struct settings *set, __u64 now)
{
	if (!(set->flags & KERNEL_PATH_ON))
		return PASS_OFF;
	return now < set->lease_end ? ADMITTED : PASS_LEASE;
}

static __always_inline struct peer *find_peer(__be32 address, __u32 *number)
{
	struct prefix key = { .length = 32, .address = address };
	__u32 *found = bpf_map_lookup_elem(&fib, &key);

	if (!found || !*found)
		return NULL;
	*number = *found;
	return bpf_map_lookup_elem(&peers, number);
}

/* LOCAL_* of an address. */
static __always_inline __u32 find_local(__be32 address)
{
	struct prefix key = { .length = 32, .address = address };
	__u32 *found = bpf_map_lookup_elem(&local, &key);

	return found ? *found : 0;
}

#endif
