//! Checks the conservation law by the worker's counters and by what the test counted outside of it.

use dataplane::counters::{Flow, WorkerTotals};

/// The packets that entered and left a worker, counted by the test in inner wire packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outside {
    /// Packets put into the device queue.
    pub pushed: u64,
    /// Datagrams that the underlay took.
    pub sent: u64,
    /// Datagrams put into the underlay queue, a super-packet weighing its segments.
    pub handed: u64,
    /// Packets found behind the device.
    pub delivered: u64,
    /// Answers to probes that the underlay took, and answers that control was told of.
    pub probes: u64,
    /// Packets that the underlay is known to have no room for.
    pub held: u64,
}

/// Everything in `totals` that breaks the law or disagrees with `outside`; empty while all is well.
pub fn audit(totals: &WorkerTotals, outside: &Outside) -> Vec<String> {
    let (out, inb) = (&totals.outbound, &totals.inbound);
    let equations = [
        ("pushed = outbound received", outside.pushed, out.received),
        (
            "taken by the underlay = outbound sent",
            outside.sent,
            out.sent,
        ),
        ("handed = inbound received", outside.handed, inb.received),
        (
            "behind the device = delivered in both directions",
            outside.delivered,
            out.delivered + inb.delivered,
        ),
        (
            "answered or heard = inbound probes",
            outside.probes,
            inb.probes,
        ),
        ("outbound has no probes", 0, out.probes),
        ("without room = outbound held", outside.held, out.held),
        ("inbound sends nothing", 0, inb.sent),
        ("inbound originates nothing", 0, inb.originated),
        ("inbound holds nothing", 0, inb.held),
    ];
    let mut broken: Vec<String> = equations
        .iter()
        .filter(|(_, outside, counted)| outside != counted)
        .map(|(law, outside, counted)| format!("{law}: {outside} outside, {counted} counted"))
        .collect();
    broken.extend(unbalanced("outbound", out));
    broken.extend(unbalanced("inbound", inb));
    broken
}

/// The law itself, for one direction.
fn unbalanced(direction: &str, flow: &Flow) -> Option<String> {
    let drops: u64 = flow.drops.iter().sum();
    let came = flow.received + flow.originated;
    let went = flow.sent + flow.delivered + flow.probes + drops + flow.held;
    let broken = came != went || flow.balance() != 0;
    broken.then(|| format!("{direction}: {came} came, {went} have a fate: {flow:?}"))
}
