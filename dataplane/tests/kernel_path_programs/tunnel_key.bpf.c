/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What a VXLAN device attaches to a packet that it has decapsulated, so that a test may run gro_in behind it. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_helpers.h>

const char licence[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} next SEC(".maps");

/* Node 2 and node 3 of the tests' cluster, in the byte order of the machine. */
#define PEER 0xc0000202
#define OTHER 0xc0000203

static __always_inline int received(struct __sk_buff *skb, __u32 from, __u32 vni)
{
	/* The helper is for sending: what it takes for the local address is read back as the remote one. */
	struct bpf_tunnel_key key = { .tunnel_id = vni, .local_ipv4 = from };

	bpf_skb_set_tunnel_key(skb, &key, sizeof(key), 0);
	bpf_tail_call(skb, &next, 0);
	return TC_ACT_RECLASSIFY;
}

SEC("classifier/from_peer")
int from_peer(struct __sk_buff *skb)
{
	return received(skb, PEER, 1);
}

SEC("classifier/from_other")
int from_other(struct __sk_buff *skb)
{
	return received(skb, OTHER, 1);
}

SEC("classifier/of_other_vni")
int of_other_vni(struct __sk_buff *skb)
{
	return received(skb, PEER, 2);
}
