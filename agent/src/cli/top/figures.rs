//! Formats rates for people: three figures and a unit.

/// Bits per second, in the decimal units of networks: `1.50 Mbit/s`.
pub(super) fn bits(rate: f64) -> String {
    let units = [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")];
    match units.into_iter().find(|(unit, _)| rate >= unit * 0.9995) {
        Some((unit, name)) => format!("{} {name}", three(rate / unit)),
        None => format!("{rate:.0} bit/s"),
    }
}

/// Packets per second: `12.3 k`, `0.5`.
pub(super) fn packets(rate: f64) -> String {
    let units = [(1e9, " G"), (1e6, " M"), (1e3, " k")];
    // 999.5 would round to 1000.
    match units.into_iter().find(|(unit, _)| rate >= unit * 0.9995) {
        Some((unit, name)) => format!("{}{name}", three(rate / unit)),
        None if rate > 0.0 && rate < 9.95 => format!("{rate:.1}"),
        None => format!("{rate:.0}"),
    }
}

/// A part of 1, in per cent.
pub(super) fn share(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

fn three(number: f64) -> String {
    match number {
        number if number < 9.995 => format!("{number:.2}"),
        number if number < 99.95 => format!("{number:.1}"),
        number => format!("{number:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_three_figures_at_most() {
        let texts = [0.0, 0.25, 9.9, 12.4, 999.0, 999.9, 12_345.0, 1_234_567.0].map(packets);
        let expected = ["0", "0.2", "9.9", "12", "999", "1.00 k", "12.3 k", "1.23 M"];
        assert_eq!(texts, expected);
        let texts = [0.0, 999.4, 123_456.0, 9_412_345_678.0].map(bits);
        assert_eq!(texts, ["0 bit/s", "999 bit/s", "123 kbit/s", "9.41 Gbit/s"]);
        assert_eq!([0.0, 0.5, 1.0].map(share), ["0 %", "50 %", "100 %"]);
    }
}
