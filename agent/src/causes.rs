//! Formats an error with its causes on one line, for the log, `tartan status` and the terminal.

/// The error and its chain of sources, separated by colons.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let sentence = error.to_string();
        // Some errors contain the sentence of their source.
        if !text.contains(&sentence) {
            text.push_str(": ");
            text.push_str(&sentence);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum TestError {
        #[error("cannot read /x")]
        Read(#[source] io::Error),
        #[error("line 3: {0}")]
        Line(#[source] io::Error),
    }

    #[test]
    fn every_cause_is_written_once() {
        let cause = || io::Error::other("no such thing");
        assert_eq!(
            causes(&TestError::Read(cause())),
            "cannot read /x: no such thing"
        );
        assert_eq!(causes(&TestError::Line(cause())), "line 3: no such thing");
    }
}
