//! What the common faults of a connection mean: one sentence for each, whatever words the libraries have for it.

/// The names of what the operator can change.
pub(super) struct Remedies {
    /// What names the certificates that sign the server's.
    pub(super) trust: &'static str,
    /// What names this node's certificate and key.
    pub(super) identity: &'static str,
    /// What names the server.
    pub(super) server: &'static str,
}

/// The sentence for an error whose chain of causes reads `causes`; none for one that is not known here.
/// `is_tls`: the connection is for TLS. `seconds` is how long it may take.
pub(super) fn in_words(
    causes: &str,
    is_tls: bool,
    seconds: u64,
    remedies: &Remedies,
) -> Option<String> {
    let Remedies {
        trust,
        identity,
        server,
    } = remedies;
    let has = |parts: &[&str]| {
        let lower = causes.to_ascii_lowercase();
        parts.iter().any(|part| lower.contains(part))
    };
    if has(&["unknownissuer"]) {
        return Some(format!(
            "its certificate is not signed by those in {trust} (UnknownIssuer): correct {trust}"
        ));
    }
    if has(&["certificaterequired"]) {
        return Some(format!("it asks for a client certificate: set {identity}"));
    }
    if is_tls && has(&["invalidcontenttype", "tls handshake eof"]) {
        return Some(format!(
            "it answers no TLS handshake: if it has no TLS, use http:// in {server}"
        ));
    }
    if !is_tls && has(&["http request to an https server"]) {
        return Some(format!("it expects TLS: use https:// in {server}"));
    }
    if has(&["timed out", "deadline has elapsed", "timedout"]) {
        return Some(no_answer(seconds));
    }
    None
}

/// Nothing came back in time.
pub(super) fn no_answer(seconds: u64) -> String {
    format!("it does not answer within {seconds} s: check its address and the firewalls between")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_faults_have_one_sentence_each() {
        let remedies = Remedies {
            trust: "TRUST",
            identity: "IDENTITY",
            server: "SERVER",
        };
        for (causes, is_tls, expected) in [
            (
                "transport error: invalid peer certificate: UnknownIssuer",
                true,
                "its certificate is not signed by those in TRUST (UnknownIssuer): correct TRUST",
            ),
            (
                "transport error: received fatal alert: CertificateRequired",
                true,
                "it asks for a client certificate: set IDENTITY",
            ),
            (
                "transport error: received corrupt message of type InvalidContentType",
                true,
                "it answers no TLS handshake: if it has no TLS, use http:// in SERVER",
            ),
            (
                "Client sent an HTTP request to an HTTPS server.",
                false,
                "it expects TLS: use https:// in SERVER",
            ),
            (
                "transport error: tcp connect error: deadline has elapsed",
                false,
                "it does not answer within 3 s: check its address and the firewalls between",
            ),
        ] {
            let found = in_words(causes, is_tls, 3, &remedies);
            assert_eq!(found.as_deref(), Some(expected), "{causes}");
        }
        let other = "transport error: tcp connect error: Connection refused (os error 111)";
        assert_eq!(in_words(other, true, 3, &remedies), None);
    }
}
