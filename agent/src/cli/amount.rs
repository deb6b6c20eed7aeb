//! Formats times, sizes and rates for the tables.

/// Seconds in the two largest units: `3 d 4 h`, `59 s`.
pub(super) fn duration(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (length, name) in units {
        let count = rest / length;
        rest %= length;
        if count > 0 {
            parts.push(format!("{count} {name}"));
        }
    }
    parts.truncate(2);
    if parts.is_empty() {
        "0 s".to_owned()
    } else {
        parts.join(" ")
    }
}

/// Bytes in binary units, three figures: `1.21 GiB`, `999 B`.
pub(super) fn bytes(count: u64) -> String {
    let mut size = count as f64;
    let mut units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].into_iter();
    let mut unit = "B";
    // 1023.5 and more would round to 1024.
    while size >= 1023.5 {
        let Some(larger) = units.next() else { break };
        size /= 1024.0;
        unit = larger;
    }
    match (unit, size) {
        ("B", _) => format!("{count} B"),
        (_, size) if size < 9.995 => format!("{size:.2} {unit}"),
        (_, size) if size < 99.95 => format!("{size:.1} {unit}"),
        _ => format!("{size:.0} {unit}"),
    }
}

/// A rate in the decimal units of networks, three figures at most: `10 Mbit/s`.
pub(super) fn bits(rate: u64) -> String {
    let units = [
        (1_000_000_000, "Gbit/s"),
        (1_000_000, "Mbit/s"),
        (1_000, "kbit/s"),
    ];
    match units.into_iter().find(|(unit, _)| rate >= *unit) {
        Some((unit, name)) => {
            let text = format!("{:.2}", rate as f64 / unit as f64);
            let text = text.trim_end_matches('0').trim_end_matches('.');
            format!("{text} {name}")
        }
        None => format!("{rate} bit/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_at_most_two_units() {
        let message = [0, 59, 60, 3_599, 3_600, 90_061].map(duration);
        assert_eq!(
            message,
            ["0 s", "59 s", "1 min", "59 min 59 s", "1 h", "1 d 1 h"]
        );
    }

    #[test]
    fn sizes_have_three_figures() {
        let message = [0, 1023, 1024, 10_240, 1_048_000, 1_300_000_000, u64::MAX].map(bytes);
        assert_eq!(
            message,
            [
                "0 B", "1023 B", "1.00 KiB", "10.0 KiB", "1023 KiB", "1.21 GiB", "16.0 EiB"
            ]
        );
    }

    #[test]
    fn rates_have_decimal_units() {
        let message = [1, 1_000, 1_500_000, 10_000_000, 2_500_000_000].map(bits);
        assert_eq!(
            message,
            [
                "1 bit/s",
                "1 kbit/s",
                "1.5 Mbit/s",
                "10 Mbit/s",
                "2.5 Gbit/s"
            ]
        );
    }
}
