/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Announcements of connections that connection tracking has forgotten: which of them concern a flow.
 *
 * Theory of operation: the kernel announces every connection that it forgets, and most were too short to have an entry. So the
 * flow thread's socket has a filter that asks the tables, and the thread is woken for the others alone. Only connections
 * that are not translated have entries: the tuple of the end that opened the connection, which is the first attribute, is
 * the key of one direction's entry, and its reverse that of the other's. Announcements of IPv6, and of other protocols than
 * TCP and UDP, are refused. One whose first attribute is not laid out as ctnetlink_dump_tuples does it
 * (net/netfilter/nf_conntrack_netlink.c) is let through, and the thread reads it.
 */
#ifndef TARTAN_FORGOTTEN_H
#define TARTAN_FORGOTTEN_H

#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <linux/netlink.h>

#include "flow.h"

/* Attributes are padded to 4 bytes, and numbers in network byte order. */
struct announcement {
	struct nlmsghdr head;
	struct nfgenmsg family;
	struct nlattr original;
	struct nlattr addresses;
	struct nlattr source_attribute;
	__be32 source;
	struct nlattr destination_attribute;
	__be32 destination;
	struct nlattr ports;
	struct nlattr protocol_attribute;
	__u8 protocol, protocol_pad[3];
	struct nlattr source_port_attribute;
	__be16 source_port, source_port_pad;
	struct nlattr destination_port_attribute;
	__be16 destination_port, destination_port_pad;
};

/* `length` with the attribute's own header, without padding behind it. */
static __always_inline bool is_attribute(const struct nlattr *attribute, __u16 type, __u16 length)
{
	return (attribute->nla_type & NLA_TYPE_MASK) == type && attribute->nla_len == length;
}

/* Of IPv4 and one with a protocol number. */
static __always_inline bool has_tuple(const struct announcement *message)
{
	/* A zone may follow in the first. */
	return (message->original.nla_type & NLA_TYPE_MASK) == CTA_TUPLE_ORIG && is_attribute(&message->addresses, CTA_TUPLE_IP, 20) &&
	       is_attribute(&message->source_attribute, CTA_IP_V4_SRC, 8) &&
	       is_attribute(&message->destination_attribute, CTA_IP_V4_DST, 8) &&
	       (message->ports.nla_type & NLA_TYPE_MASK) == CTA_TUPLE_PROTO &&
	       is_attribute(&message->protocol_attribute, CTA_PROTO_NUM, 5);
}

static __always_inline bool has_ports(const struct announcement *message)
{
	return is_attribute(&message->source_port_attribute, CTA_PROTO_SRC_PORT, 6) &&
	       is_attribute(&message->destination_port_attribute, CTA_PROTO_DST_PORT, 6);
}

/* Whether the announcement that begins at the first byte may concern an entry of either table. */
static __always_inline bool may_concern_flow(struct __sk_buff *skb)
{
	struct announcement message;
	struct flow_key key, back;

	if (bpf_skb_load_bytes(skb, 0, &message, sizeof(message)))
		return true;
	if (message.family.nfgen_family != FAMILY_IPV4)
		return false;
	if (!has_tuple(&message))
		return true;
	if (message.protocol != IPPROTO_TCP && message.protocol != IPPROTO_UDP)
		return false;
	if (!has_ports(&message))
		return true;
	__builtin_memset(&key, 0, sizeof(key));
	key.source = message.source;
	key.destination = message.destination;
	key.source_port = message.source_port;
	key.destination_port = message.destination_port;
	key.protocol = message.protocol;
	reverse(&back, &key);
	return bpf_map_lookup_elem(&flows_out, &key) || bpf_map_lookup_elem(&flows_in, &back) ||
	       bpf_map_lookup_elem(&flows_in, &key) || bpf_map_lookup_elem(&flows_out, &back);
}

#endif
