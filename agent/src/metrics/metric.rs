//! One metric: its name as Prometheus has it, its kind, and what it means.

/// A metric, and the words that a reader finds above its samples.
#[derive(Debug)]
pub(super) struct Metric {
    /// As in a query, with unit and suffix: `tartan_peer_sent_bytes_total`.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// What is counted, since when, and what to do about it. One line.
    pub(super) help: &'static str,
}

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It only grows, but for a start from 0. Its name ends with `_total`.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How often values lay within each of some bounds, their count and their sum: three names, with `_bucket`, `_count` and
    /// `_sum` behind this one.
    Histogram,
    /// It is 1, and its labels tell. Its name ends with `_info`.
    Info,
}

impl Metric {
    pub(super) const fn counter(name: &'static str, help: &'static str) -> Metric {
        Metric {
            name,
            kind: Kind::Counter,
            help,
        }
    }

    pub(super) const fn gauge(name: &'static str, help: &'static str) -> Metric {
        Metric {
            name,
            kind: Kind::Gauge,
            help,
        }
    }

    pub(super) const fn histogram(name: &'static str, help: &'static str) -> Metric {
        Metric {
            name,
            kind: Kind::Histogram,
            help,
        }
    }

    pub(super) const fn info(name: &'static str, help: &'static str) -> Metric {
        Metric {
            name,
            kind: Kind::Info,
            help,
        }
    }

    /// The name of its family in OpenMetrics, without suffix and unit, and the unit.
    pub(super) fn family(&self) -> (&'static str, Option<&'static str>) {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Gauge | Kind::Histogram => "",
            Kind::Info => "_info",
        };
        let name = self.name.strip_suffix(suffix).unwrap_or(self.name);
        let split = |unit: &&'static str| {
            let name = name.strip_suffix(*unit)?.strip_suffix('_')?;
            Some((name, Some(*unit)))
        };
        let mut split = UNITS.iter().filter_map(split);
        split.next().unwrap_or((name, None))
    }
}

/// Units of the names: those of <https://prometheus.io/docs/practices/naming/>, and what is counted one by one.
const UNITS: [&str; 4] = ["seconds", "bytes", "packets", "datagrams"];
