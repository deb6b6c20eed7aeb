//! The order of rows: as people count. `node2` comes before `node10`, 192.0.2.9 before 192.0.2.10, 900 KiB before 1 MiB.

use std::cmp::Ordering;
use std::net::IpAddr;

use ipnet::IpNet;

/// Compares two cells of a column. What has no value, `-`, comes last.
pub(super) fn natural(a: &str, b: &str) -> Ordering {
    let empty = |text: &str| text == "-" || text.is_empty();
    empty(a)
        .cmp(&empty(b))
        .then_with(|| match (network(a), network(b)) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => match (amount(a), amount(b)) {
                (Some(a), Some(b)) => a.total_cmp(&b),
                _ => words(a, b),
            },
        })
}

/// The first of a list of addresses or prefixes.
fn network(text: &str) -> Option<IpNet> {
    let first = text.split([',', ' ']).next()?;
    let address = || first.parse::<IpAddr>().ok().map(IpNet::from);
    first.parse().ok().or_else(address)
}

/// A number with what `amount` prints behind it: `1.21 GiB`, `3 d 4 h`, `10 Mbit/s`.
fn amount(text: &str) -> Option<f64> {
    let mut parts = text.split_whitespace();
    let mut sum = 0.0;
    while let Some(number) = parts.next() {
        let number: f64 = number.parse().ok()?;
        let unit = match parts.next() {
            None | Some("B" | "s" | "bit/s") => 1.0,
            Some("KiB") => 1024.0,
            Some("MiB") => 1024f64.powi(2),
            Some("GiB") => 1024f64.powi(3),
            Some("TiB") => 1024f64.powi(4),
            Some("PiB") => 1024f64.powi(5),
            Some("EiB") => 1024f64.powi(6),
            Some("min") => 60.0,
            Some("h") => 3600.0,
            Some("d") => 86_400.0,
            Some("kbit/s") => 1e3,
            Some("Mbit/s") => 1e6,
            Some("Gbit/s") => 1e9,
            Some(_) => return None,
        };
        sum += number * unit;
    }
    Some(sum)
}

/// Digits by their number, all else by its characters.
fn words(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let ((head_a, rest_a), (head_b, rest_b)) = (piece(a), piece(b));
        let numbers = (head_a.parse::<u64>().ok(), head_b.parse::<u64>().ok());
        let order = match numbers {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => head_a.cmp(head_b),
        };
        if order != Ordering::Equal || head_a.is_empty() {
            return order.then_with(|| a.cmp(b));
        }
        (a, b) = (rest_a, rest_b);
    }
}

/// The digits, or what is none, at the beginning, and the rest.
fn piece(text: &str) -> (&str, &str) {
    let digits = text.starts_with(|c: char| c.is_ascii_digit());
    let end = text.find(|c: char| c.is_ascii_digit() != digits);
    text.split_at(end.unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_in_the_order_in_which_people_count() {
        for sorted in [
            &["node", "node1", "node2", "node10", "node10a", "-"][..],
            &["192.0.2.9", "192.0.2.10, 2001:db8::1", "2001:db8::2"],
            &["10.244.2.0/24", "10.244.10.0/24", "fd00::/64"],
            &["0 B", "999 B", "1.21 KiB", "900 KiB", "1.00 MiB", "-"],
            &["59 s", "1 min 2 s", "3 h", "2 d 1 h"],
            &["default/web-2", "default/web-11", "kube-system/dns"],
        ] {
            for (at, a) in sorted.iter().enumerate() {
                for (other, b) in sorted.iter().enumerate() {
                    assert_eq!(natural(a, b), at.cmp(&other), "{a} and {b}");
                }
            }
        }
    }
}
