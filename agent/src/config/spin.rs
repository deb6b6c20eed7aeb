//! `spin`: how long a worker that ran out of packets looks for more before it sleeps.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::time::Duration;

/// How long workers look on before they sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// As long as pays, where this process may use a core more than it has workers.
    Auto,
    /// Not at all.
    Off,
    /// So many microseconds at most, 1 to 1,000, whatever cores there are.
    Micros(u16),
}

impl Spin {
    /// The value as written: `auto`, `off` or microseconds. `None` if it is none of these.
    pub(super) fn read(written: &str) -> Option<Spin> {
        match written {
            "auto" => Some(Spin::Auto),
            "off" => Some(Spin::Off),
            digits => {
                let micros = digits.parse().ok()?;
                MICROS.contains(&micros).then_some(Spin::Micros(micros))
            }
        }
    }

    /// The limit for each of `workers` workers; zero does not look on at all.
    pub fn limit(self, workers: usize) -> Duration {
        self.limit_on(
            std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            workers,
        )
    }

    /// See [`Spin::limit`]; `cores` are those that this process may use by its affinity mask and its cgroup's quota.
    fn limit_on(self, cores: usize, workers: usize) -> Duration {
        match self {
            Spin::Auto if cores > workers => PAYS,
            Spin::Auto | Spin::Off => Duration::ZERO,
            Spin::Micros(micros) => Duration::from_micros(micros.into()),
        }
    }
}

/// What `auto` is where cores are to spare: several times a wake-up of an idle core, and about a round trip to a
/// neighbour.
const PAYS: Duration = Duration::from_micros(50);

const MICROS: RangeInclusive<u16> = 1..=1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_spares_the_last_core() {
        for (cores, workers, limit) in [
            (1, 1, Duration::ZERO),
            (2, 1, PAYS),
            (2, 2, Duration::ZERO),
            (4, 2, PAYS),
            (4, 4, Duration::ZERO),
        ] {
            assert_eq!(
                Spin::Auto.limit_on(cores, workers),
                limit,
                "{cores} {workers}"
            );
        }
    }

    #[test]
    fn what_is_named_holds_on_any_number_of_cores() {
        assert_eq!(Spin::Off.limit_on(64, 1), Duration::ZERO);
        assert_eq!(Spin::Micros(7).limit_on(1, 4), Duration::from_micros(7));
    }

    #[test]
    fn a_value_is_a_word_or_microseconds() {
        let read = |written| Spin::read(written);
        assert_eq!(read("auto"), Some(Spin::Auto));
        assert_eq!(read("off"), Some(Spin::Off));
        assert_eq!(read("1"), Some(Spin::Micros(1)));
        assert_eq!(read("1000"), Some(Spin::Micros(1000)));
        for wrong in ["", "0", "1001", "-5", "50us", "on", "Auto"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
