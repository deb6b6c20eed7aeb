//! The log, on standard error.
//!
//! Where standard error is a stream to journald, each line begins with its level as `sd-daemon(3)` has it (`<3>` for an
//! error) and has no time: journald notes both. Elsewhere a line has its time and its level in words.

use std::fmt;
use std::io::{self, IsTerminal};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{self, FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

/// Starts the log of this process. `filter` are directives of [`EnvFilter`], checked.
pub(crate) fn start(filter: &str) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    // Only a second start in one process is refused.
    let _ = if is_journal() {
        tracing::subscriber::set_global_default(journal(filter, io::stderr))
    } else {
        let lines = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal());
        tracing::subscriber::set_global_default(lines.finish())
    };
}

/// What a line of this level begins with on standard error, before or without [`start`].
pub(crate) fn error_prefix() -> &'static str {
    if is_journal() {
        prefix(Level::ERROR)
    } else {
        ""
    }
}

/// Whether standard error is the stream to journald that `JOURNAL_STREAM` names, as `systemd.exec(5)` describes it: the
/// variable is inherited by programs whose standard error is another.
fn is_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let stream = rustix::fs::fstat(io::stderr());
    stream.is_ok_and(|stream| named == format!("{}:{}", stream.st_dev, stream.st_ino))
}

fn journal<W>(filter: EnvFilter, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(false)
        .event_format(Journal)
        .finish()
}

/// A line with its level in front.
struct Journal;

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = *event.metadata().level();
        let mut text = String::new();
        format::format()
            .without_time()
            .with_level(false)
            .with_ansi(false)
            .format_event(context, Writer::new(&mut text), event)?;
        // Each line of a message is an entry of its own for journald.
        text.lines()
            .try_for_each(|line| writeln!(writer, "{}{line}", prefix(level)))
    }
}

const fn prefix(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_line_has_its_level() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = journal(EnvFilter::new("info"), move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!(code = "x", "one");
            tracing::warn!("two\nthree");
            tracing::info!("four");
            tracing::debug!("not asked for");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let place = module_path!();
        let expected =
            format!("<3>{place}: one code=\"x\"\n<4>{place}: two\n<4>three\n<6>{place}: four\n");
        assert_eq!(text, expected);
    }
}
