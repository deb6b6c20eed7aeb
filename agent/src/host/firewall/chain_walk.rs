//! Theory of operation
//!
//! Finds out whether chains of rules, of any program, cut pods off. It walks
//! them for a kind of packets ("from the cluster network to anywhere"), not for
//! one packet, so a rule holds for all of that kind, for none, or for some. Only
//! rules that hold for all count: a firewall's last rule ("reject the rest") is
//! one, and so is an accept of the cluster network. A rule that holds for some,
//! for instance for a port, an interface or a connection's state, is meant for
//! just those packets, and is skipped.
//!
//! Chains are walked as the kernel walks them, to the kernel's depth of jumps
//! and for a bounded number of rules. A pure function.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::nft::{Action, ParsedRule, Term};

/// Packets of one cluster network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packets {
    pub(super) network: IpNet,
    /// They come from there.
    pub(super) from: bool,
    /// They go there.
    pub(super) to: bool,
}

/// Where packets end, apart from those that a rule for some of them ends before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Behind the last rule.
    Through,
    Accepted,
    Dropped(DroppedBy),
}

/// The rule that cuts packets off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DroppedBy {
    /// The number, in the chain that was walked, of the rule that leads to it.
    pub(super) rule: usize,
    /// The chain that holds it.
    pub(super) chain: String,
    /// Its verdict: "drop", "reject".
    pub(super) verdict: &'static str,
}

/// Chains by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Chains(pub(super) BTreeMap<String, Vec<ParsedRule>>);

impl Packets {
    /// The two kinds that a firewall is checked for: packets from the network,
    /// and packets to it.
    pub(super) fn sides(network: IpNet) -> [Packets; 2] {
        [(true, false), (false, true)].map(|(from, to)| Packets { network, from, to })
    }

    /// From pod to pod.
    pub(super) fn between(network: IpNet) -> Packets {
        Packets {
            network,
            from: true,
            to: true,
        }
    }

    /// Whether a term holds of all of them, or of none; neither is known for
    /// what holds of some.
    fn are(&self, term: &Term) -> Option<bool> {
        match *term {
            Term::Marked
            | Term::FromInterfaces(_)
            | Term::FromInterface(_)
            | Term::NotRoutedBack
            | Term::RoutedBack
            | Term::Redirected
            | Term::Packet(_) => None,
            Term::From(prefix) => self.are_in(prefix, self.from),
            Term::NotFrom(prefix) => self.are_in(prefix, self.from).map(|are| !are),
            Term::To(prefix) => self.are_in(prefix, self.to),
            Term::NotTo(prefix) => self.are_in(prefix, self.to).map(|are| !are),
        }
    }

    /// Whether the addresses of one side lie in a prefix. `inside`: they are of
    /// the network; else they may be any of its family.
    fn are_in(&self, prefix: IpNet, inside: bool) -> Option<bool> {
        if prefix.addr().is_ipv4() != self.network.addr().is_ipv4() {
            Some(false)
        } else if prefix.prefix_len() == 0 || inside && prefix.contains(&self.network) {
            Some(true)
        } else if inside && !self.network.contains(&prefix) {
            Some(false)
        } else {
            None
        }
    }
}

impl ParsedRule {
    /// Whether it holds for all of the packets.
    pub(super) fn holds(&self, packets: &Packets) -> bool {
        !self.has_unknown
            && self
                .terms
                .iter()
                .all(|term| packets.are(term) == Some(true))
    }
}

impl Chains {
    /// Where packets that enter a chain end. A chain that is not known is empty.
    pub(super) fn end(&self, chain: &str, packets: &Packets) -> End {
        self.walk(chain, packets, DEPTH, &mut { MOST_RULES })
    }

    fn walk(&self, chain: &str, packets: &Packets, depth: usize, left: &mut usize) -> End {
        let rules = self.0.get(chain).map_or(&[][..], Vec::as_slice);
        for (number, rule) in rules.iter().enumerate() {
            let Some(one_less) = left.checked_sub(1) else {
                return End::Through;
            };
            *left = one_less;
            if !rule.holds(packets) {
                continue;
            }
            let (to, stays) = match &rule.action {
                Action::Nothing | Action::Unknown => continue,
                Action::Return => return End::Through,
                Action::Accept => return End::Accepted,
                Action::Drop(verdict) => {
                    return End::Dropped(DroppedBy {
                        rule: number,
                        chain: chain.to_owned(),
                        verdict,
                    });
                }
                Action::Jump(to) => (to, false),
                Action::Goto(to) => (to, true),
            };
            let Some(depth) = depth.checked_sub(1) else {
                return End::Through;
            };
            match self.walk(to, packets, depth, left) {
                End::Through if stays => return End::Through,
                End::Through => {}
                End::Accepted => return End::Accepted,
                End::Dropped(cut) => {
                    return End::Dropped(DroppedBy {
                        rule: number,
                        ..cut
                    });
                }
            }
        }
        End::Through
    }
}

/// `NFT_JUMP_STACK_SIZE`
const DEPTH: usize = 16;
/// More rules than any node has.
const MOST_RULES: usize = 100_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    /// "from 10.0.0.0/8 accept", "jump other", "? drop": a rule in few words.
    fn rule(text: &str) -> ParsedRule {
        let mut parsed = ParsedRule::empty();
        let mut words = text.split(' ');
        while let Some(word) = words.next() {
            let mut next = || words.next().unwrap();
            match word {
                "?" => parsed.has_unknown = true,
                "from" => parsed.terms.push(Term::From(net(next()))),
                "not-from" => parsed.terms.push(Term::NotFrom(net(next()))),
                "to" => parsed.terms.push(Term::To(net(next()))),
                "not-to" => parsed.terms.push(Term::NotTo(net(next()))),
                "marked" => parsed.terms.push(Term::Marked),
                "accept" => parsed.action = Action::Accept,
                "return" => parsed.action = Action::Return,
                "drop" => parsed.action = Action::Drop("drop"),
                "jump" => parsed.action = Action::Jump(next().to_owned()),
                "goto" => parsed.action = Action::Goto(next().to_owned()),
                "" => {}
                other => panic!("{other}"),
            }
        }
        parsed
    }

    fn chains(texts: &[(&str, &[&str])]) -> Chains {
        let rules = |texts: &[&str]| texts.iter().map(|text| rule(text)).collect();
        Chains(
            texts
                .iter()
                .map(|(name, texts)| ((*name).to_owned(), rules(texts)))
                .collect(),
        )
    }

    const PODS: &str = "10.244.0.0/16";

    /// How the packets from and to the pods, and between them, fare in one chain.
    fn fates(rules: &[&str]) -> [&'static str; 3] {
        let chains = chains(&[("base", rules)]);
        let [from, to] = Packets::sides(net(PODS));
        [from, to, Packets::between(net(PODS))].map(|packets| match chains.end("base", &packets) {
            End::Through => "through",
            End::Accepted => "accepted",
            End::Dropped(_) => "cut",
        })
    }

    #[test]
    fn only_what_holds_for_all_of_them_decides() {
        for (rule, fates_of) in [
            ("", ["through"; 3]),
            ("drop", ["cut"; 3]),
            ("? drop", ["through"; 3]),
            ("marked drop", ["through"; 3]),
            ("from 10.244.3.0/24 drop", ["through"; 3]),
            ("from 10.0.0.0/8 drop", ["cut", "through", "cut"]),
            ("to 10.244.0.0/16 drop", ["through", "cut", "cut"]),
            ("from 192.0.2.0/24 drop", ["through"; 3]),
            ("not-from 192.0.2.0/24 drop", ["cut", "through", "cut"]),
            ("not-from 10.244.0.0/16 drop", ["through"; 3]),
            ("not-to 10.244.3.0/24 drop", ["through"; 3]),
            ("not-to 192.0.2.0/24 drop", ["through", "cut", "cut"]),
            ("from 0.0.0.0/0 to 0.0.0.0/0 drop", ["cut"; 3]),
            ("from ::/0 drop", ["through"; 3]),
            ("not-from ::/0 drop", ["cut"; 3]),
        ] {
            assert_eq!(fates(&[rule]), fates_of, "{rule}");
        }
    }

    #[test]
    fn the_first_that_decides_counts() {
        let accepted_between = ["from 10.244.0.0/16 accept", "drop"];
        assert_eq!(fates(&accepted_between), ["accepted", "cut", "accepted"]);
        assert_eq!(fates(&["drop", "accept"]), ["cut"; 3]);
        assert_eq!(fates(&["? accept", "return", "drop"]), ["through"; 3]);
    }

    #[test]
    fn jumps_come_back_and_gotos_do_not() {
        let from = Packets::sides(net(PODS))[0];
        let cut = |rule, chain: &str| {
            End::Dropped(DroppedBy {
                rule,
                chain: chain.to_owned(),
                verdict: "drop",
            })
        };
        // firewalld's shape.
        let zones = chains(&[
            ("forward", &["? accept", "jump zones", "? drop", "drop"]),
            ("zones", &["? goto home", "goto public"]),
            ("public", &["jump deny", "jump allow", "drop"]),
            ("home", &["accept"]),
            ("deny", &["? drop"]),
        ]);
        assert_eq!(zones.end("forward", &from), cut(1, "public"));
        let trusted = chains(&[
            ("forward", &["jump zones", "drop"]),
            ("zones", &["from 10.244.0.0/16 goto trusted", "goto public"]),
            ("trusted", &["accept"]),
            ("public", &["drop"]),
        ]);
        assert_eq!(trusted.end("forward", &from), End::Accepted);
        let back = chains(&[
            ("a", &["jump b", "drop"]),
            ("b", &["goto c", "accept"]),
            ("c", &["return", "accept"]),
        ]);
        assert_eq!(back.end("a", &from), cut(1, "a"));
        let gone = chains(&[("a", &["goto b", "drop"]), ("b", &[])]);
        assert_eq!(gone.end("a", &from), End::Through);
        assert_eq!(gone.end("nowhere", &from), End::Through);
    }

    #[test]
    fn a_circle_ends() {
        // No kernel takes one; a list read while it changes may look like one.
        let circle = chains(&[("a", &["jump a", "jump a", "drop"])]);
        let from = Packets::sides(net(PODS))[0];
        circle.end("a", &from);
    }

    /// A packet whose addresses, and whatever else is asked, are known.
    fn passes(rules: &[ParsedRule], from: u8, to: u8, more: bool) -> bool {
        let inside =
            |prefix: &IpNet, last: u8| prefix.contains(&net(&format!("10.244.{last}.1/32")));
        let holds = |term: &Term| match term {
            Term::From(p) => inside(p, from),
            Term::NotFrom(p) => !inside(p, from),
            Term::To(p) => inside(p, to),
            Term::NotTo(p) => !inside(p, to),
            _ => more,
        };
        for rule in rules {
            if rule.terms.iter().all(holds) && (!rule.has_unknown || more) {
                match rule.action {
                    Action::Accept | Action::Return => return true,
                    Action::Drop(_) => return false,
                    _ => {}
                }
            }
        }
        true
    }

    proptest! {
        /// Where each rule holds for all of them or none, what is said of all is
        /// true of each.
        #[test]
        fn what_is_cut_is_cut_for_each_packet(
            texts in proptest::collection::vec((
                prop::sample::select(vec!["", "from", "to", "not-from", "not-to"]),
                prop::sample::select(vec!["10.244.0.0/16", "10.0.0.0/8", "192.0.2.0/24", "0.0.0.0/0"]),
                prop::sample::select(vec!["accept", "drop", "return", ""]),
            ), 0..6),
            from in 0_u8..4,
            to in 0_u8..4,
        ) {
            let rules: Vec<ParsedRule> = texts
                .iter()
                .map(|(side, prefix, action)| match *side {
                    "" => rule(action),
                    side => rule(format!("{side} {prefix} {action}").trim_end()),
                })
                .collect();
            let chains = Chains([("base".to_owned(), rules.clone())].into());
            let cut = matches!(chains.end("base", &Packets::between(net(PODS))), End::Dropped(_));
            prop_assert_eq!(cut, !passes(&rules, from, to, false));
        }
    }
}
