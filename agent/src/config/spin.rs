//! The key `spin`: how long a worker without packets busy-polls before it sleeps.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::time::Duration;

/// How long a worker without packets busy-polls before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinSetting {
    /// 50 microseconds if this process may use more cores than it has workers, else off.
    Auto,
    /// Not at all.
    Off,
    /// At most this many microseconds, 1 to 1,000, on any number of cores.
    Micros(u16),
}

impl SpinSetting {
    /// Parses `auto`, `off` or microseconds; `None` for anything else.
    pub(super) fn parse(text: &str) -> Option<SpinSetting> {
        match text {
            "auto" => Some(SpinSetting::Auto),
            "off" => Some(SpinSetting::Off),
            digits => {
                let micros = digits.parse().ok()?;
                MICROS
                    .contains(&micros)
                    .then_some(SpinSetting::Micros(micros))
            }
        }
    }

    /// The longest that each of `workers` workers busy-polls. Zero is off.
    pub fn limit(self, workers: usize) -> Duration {
        self.limit_on(
            std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            workers,
        )
    }

    /// See [`SpinSetting::limit`]. `cores` is the number that the affinity mask and the cgroup's quota allow this process.
    fn limit_on(self, cores: usize, workers: usize) -> Duration {
        match self {
            SpinSetting::Auto if cores > workers => AUTO,
            SpinSetting::Auto | SpinSetting::Off => Duration::ZERO,
            SpinSetting::Micros(micros) => Duration::from_micros(micros.into()),
        }
    }
}

/// The limit of `auto`: several times the wake-up of an idle core, and about one round trip to a neighbour node.
const AUTO: Duration = Duration::from_micros(50);

const MICROS: RangeInclusive<u16> = 1..=1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_off_without_a_spare_core() {
        for (cores, workers, limit) in [
            (1, 1, Duration::ZERO),
            (2, 1, AUTO),
            (2, 2, Duration::ZERO),
            (4, 2, AUTO),
            (4, 4, Duration::ZERO),
        ] {
            assert_eq!(
                SpinSetting::Auto.limit_on(cores, workers),
                limit,
                "{cores} {workers}"
            );
        }
    }

    #[test]
    fn a_configured_limit_applies_on_any_number_of_cores() {
        assert_eq!(SpinSetting::Off.limit_on(64, 1), Duration::ZERO);
        assert_eq!(
            SpinSetting::Micros(7).limit_on(1, 4),
            Duration::from_micros(7)
        );
    }

    #[test]
    fn a_value_is_a_word_or_microseconds() {
        let read = |text| SpinSetting::parse(text);
        assert_eq!(read("auto"), Some(SpinSetting::Auto));
        assert_eq!(read("off"), Some(SpinSetting::Off));
        assert_eq!(read("1"), Some(SpinSetting::Micros(1)));
        assert_eq!(read("1000"), Some(SpinSetting::Micros(1000)));
        for wrong in ["", "0", "1001", "-5", "50us", "on", "Auto"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
