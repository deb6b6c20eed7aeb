//! An error with everything that caused it, as people read it: in the log, in `tartan status`, on the terminal.

/// An error and what caused it, in one line.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        // Some errors repeat their cause in their own sentence.
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::api::client::ClientError;

    #[test]
    fn causes_are_told_once() {
        let cause = io::Error::other("no such thing");
        let error = ClientError::Silent {
            path: "/x".into(),
            source: cause,
        };
        assert_eq!(
            causes(&error),
            "the agent on /x does not answer; see its log: no such thing"
        );
    }
}
