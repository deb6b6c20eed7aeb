//! Whether the clock was set back: what this node wrote last lies in the future. Leases of a registry end, and certificates
//! begin, by the clock.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::problems::Problem;

/// The file that a service writes last, and when that was; `None` where no service of this node has written it yet.
pub fn last_written(state_dir: &Path) -> Option<(PathBuf, SystemTime)> {
    let path = state_dir.join("last-good.json");
    let written = fs::metadata(&path).and_then(|file| file.modified()).ok()?;
    Some((path, written))
}

/// Judges that by the clock.
pub fn judge(path: &Path, written: SystemTime, now: SystemTime) -> Option<Problem> {
    let ahead = written.duration_since(now).unwrap_or_default();
    (ahead > TOLERATED).then(|| Problem::ClockSetBack {
        path: path.to_owned(),
    })
}

/// File times are coarse, and clocks are slewed.
const TOLERATED: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_in_the_future_shows_it() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let path = Path::new("/x/last-good.json");
        assert_eq!(judge(path, now - Duration::from_secs(9), now), None);
        assert_eq!(judge(path, now + TOLERATED, now), None);
        assert!(judge(path, now + Duration::from_secs(6), now).is_some());
    }
}
