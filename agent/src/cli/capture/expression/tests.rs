use proptest::prelude::*;

use super::*;

fn packet(source: &str, destination: &str, protocol: u8, ports: Option<(u16, u16)>) -> Packet {
    Packet {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        protocol,
        ports,
        is_later_fragment: false,
        flags: None,
        icmp: None,
    }
}

#[test]
fn an_expression_is_true_of_its_packets() {
    let web = packet("10.244.1.2", "10.244.2.3", 6, Some((40_000, 80)));
    let ping = packet("fd00::1", "fd00::2", 58, None);
    for (text, of_web, of_ping) in [
        ("", true, true),
        ("tcp", true, false),
        ("ip6", false, true),
        ("icmp6 or tcp", true, true),
        ("host 10.244.2.3", true, false),
        ("10.244.2.3", true, false),
        ("src 10.244.2.3", false, false),
        ("dst host 10.244.2.3", true, false),
        ("src or dst host fd00::2", false, true),
        ("src and dst net 10.244.0.0/16", true, false),
        ("net 10.244.1.0/24 and tcp dst port 80", true, false),
        ("tcp src port 80", false, false),
        ("portrange 79-81", true, false),
        ("not port 80", false, true),
        ("!(tcp && port 80)", false, true),
        ("(udp or tcp) and not dst port 443", true, false),
        ("proto 58", false, true),
        ("less 99", false, false),
        ("greater 100 and less 100", true, true),
        ("ip host 10.244.1.2", true, false),
        ("src host 10.244.1.2 and dst host 10.244.2.3", true, false),
        ("src 10.244.1.2 or dst fd00::2", true, true),
    ] {
        let expression = Expression::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(expression.is_true_of(Some(&web), 100), of_web, "{text}");
        assert_eq!(expression.is_true_of(Some(&ping), 100), of_ping, "{text}");
    }
}

#[test]
fn what_is_not_understood_is_named() {
    for (text, named) in [
        ("ether host 02:00:00:00:00:01", "\"ether\" is not supported"),
        ("tcp[tcpflags] & tcp-syn != 0", "looks into bytes"),
        ("vlan 3", "\"vlan\" is not supported"),
        ("host web", "--pod"),
        ("port http", "no port"),
        ("net 10.244", "no prefix"),
        ("tcp and", "something is missing"),
        ("(tcp", "has no \")\""),
        ("tcp)", "has no \"(\""),
        ("host", "has no value"),
        ("port and tcp", "has no value"),
        ("tcp udp", "without \"and\""),
        ("tcp and udp or icmp", "parentheses"),
    ] {
        let error = Expression::parse(text).unwrap_err();
        assert!(error.contains(named), "{text}: {error}");
    }
    let deep = "(".repeat(500) + "tcp" + &")".repeat(400);
    assert!(Expression::parse(&deep).unwrap_err().contains("deep"));
}

proptest! {
    /// Any words end in an expression or a sentence.
    #[test]
    fn any_text_is_parsed_without_harm(words in prop::collection::vec(prop::sample::select(vec![
        "and", "or", "not", "(", ")", "!", "&&", "src", "dst", "host", "net", "port", "10.0.0.1", "80", "tcp", "ip6",
        "less", "proto", "portrange", "1-2", "x[",
    ]), 0..20), noise in ".{0,20}") {
        let text = words.join(" ");
        if let Ok(expression) = Expression::parse(&text) {
            let packet = packet("10.0.0.1", "10.0.0.2", 6, Some((80, 1)));
            let negated = Expression::Not(Box::new(expression.clone()));
            let (is_true, is_false) = (expression.is_true_of(Some(&packet), 1), negated.is_true_of(Some(&packet), 1));
            prop_assert!(is_true != is_false);
        }
        let _ = Expression::parse(&noise);
    }
}
