//! Why another server is not reached, in the words of Go's libraries: programs that wait for their webhooks look for those in
//! what failures are told as.

use std::io::{Error, ErrorKind};

use carrack_auth::tls;
use rustls::{CertificateError, InvalidMessage};

use super::proxy::bracketed;

/// The other side hung up.
pub(super) const ENDED: &str = "EOF";

/// Why there is no connection.
pub(super) fn dialled(place: &str, port: u16, error: &Error) -> String {
    const LOOKUP: &str = "failed to lookup address information: ";
    // By the libraries of GNU and of musl.
    const NOBODY: [&str; 3] =
        ["Name or service not known", "No address associated with hostname", "Name does not resolve"];
    let text = error.to_string();
    if let Some(why) = text.strip_prefix(LOOKUP) {
        let why = if NOBODY.contains(&why) { "no such host".to_owned() } else { small(why) };
        return format!("dial tcp: lookup {place}: {why}");
    }
    format!("dial tcp {}: connect: {}", address(place, port), of_system(&text))
}

/// Why there is no TLS on a connection.
pub(super) fn unsecured(place: &str, port: u16, error: &Error) -> String {
    if error.kind() == ErrorKind::UnexpectedEof {
        return ENDED.to_owned();
    }
    if error.raw_os_error().is_some() {
        return format!("read tcp {}: read: {}", address(place, port), of_system(&error.to_string()));
    }
    let told = match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(why)) => {
            unverified(why).map(|why| format!("failed to verify certificate: x509: {why}"))
        }
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            Some("first record does not look like a TLS handshake".to_owned())
        }
        _ => None,
    };
    format!("tls: {}", told.unwrap_or_else(|| tls::why_refused(error)))
}

/// Why a connection is over before all was said on it. What libraries say of themselves there (rustls, where to read on) is
/// nothing to a client.
pub(super) fn broken_off(error: &(dyn std::error::Error + 'static)) -> String {
    let mut next = Some(error);
    while let Some(cause) = next {
        if cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message) {
            return ENDED.to_owned();
        }
        match cause.downcast_ref::<Error>() {
            Some(error) if error.kind() == ErrorKind::UnexpectedEof => return "unexpected EOF".to_owned(),
            Some(error) if error.raw_os_error().is_some() => return of_system(&error.to_string()),
            _ => next = cause.source(),
        }
    }
    carrack_engine::causes(error)
}

/// What is wrong with a certificate, if Go has words for it.
fn unverified(why: &CertificateError) -> Option<String> {
    const STRANGER: &str = "certificate signed by unknown authority";
    Some(match why {
        // Of an authority that is called as a trusted one, the signature alone is wrong.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => STRANGER.to_owned(),
        // One that was made for itself, and is not trusted.
        CertificateError::Other(other) if other.to_string() == "CaUsedAsEndEntity" => STRANGER.to_owned(),
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => format!("certificate has expired or is not yet valid: {why}"),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().map(|name| bare(name)).collect();
            format!("certificate is valid for {}, not {}", names.join(", "), expected.to_str())
        }
        _ => return None,
    })
}

/// A name of a certificate, which rustls tells with what sort of name it is: `DnsName("a.example.com")`.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

fn address(place: &str, port: u16) -> String {
    format!("{}:{port}", bracketed(place))
}

/// What the operating system says, without its number.
fn of_system(text: &str) -> String {
    small(text.split_once(" (os error ").map_or(text, |(words, _)| words))
}

/// With a small first letter.
fn small(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::OtherError;
    use rustls_pki_types::ServerName;

    use super::*;

    #[test]
    fn nobody_is_reached_in_the_words_of_go() {
        for (place, error, want) in [
            ("10.0.0.1", Error::from_raw_os_error(111), "dial tcp 10.0.0.1:443: connect: connection refused"),
            ("::1", Error::from_raw_os_error(113), "dial tcp [::1]:443: connect: no route to host"),
            (
                "a.svc",
                Error::other("failed to lookup address information: Name or service not known"),
                "dial tcp: lookup a.svc: no such host",
            ),
            (
                "a.svc",
                Error::other("failed to lookup address information: Temporary failure in name resolution"),
                "dial tcp: lookup a.svc: temporary failure in name resolution",
            ),
        ] {
            assert_eq!(dialled(place, 443, &error), want);
        }
    }

    #[test]
    fn broken_connections_are_told_without_libraries() {
        /// What a library makes of an error of the connection.
        #[derive(Debug, thiserror::Error)]
        #[error("connection error")]
        struct Wrapped(#[source] Error);
        let of_rustls = || {
            let text = "peer closed connection without sending TLS close_notify: https://docs.rs/rustls";
            Error::new(ErrorKind::UnexpectedEof, text)
        };
        for (error, want) in [
            (of_rustls(), "unexpected EOF"),
            (Error::from_raw_os_error(104), "connection reset by peer"),
            (Error::other("no room"), "no room"),
        ] {
            assert_eq!(broken_off(&error), want);
        }
        assert_eq!(broken_off(&Wrapped(of_rustls())), "unexpected EOF");
        assert_eq!(broken_off(&Wrapped(Error::from_raw_os_error(32))), "broken pipe");
        assert_eq!(broken_off(&Wrapped(Error::other("no room"))), "connection error: no room");
    }

    #[test]
    fn nobody_is_trusted_in_the_words_of_go() {
        let of_tls = |error: rustls::Error| Error::new(ErrorKind::InvalidData, error);
        let of_certificate = |error: CertificateError| of_tls(error.into());
        let other = |name: &'static str| CertificateError::Other(OtherError(Arc::new(Error::other(name))));
        let stranger = "tls: failed to verify certificate: x509: certificate signed by unknown authority";
        let misnamed = CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("a.svc").expect("a name"),
            presented: vec!["DnsName(\"b.svc\")".to_owned(), "IpAddress(10.0.0.1)".to_owned()],
        };
        for (error, want) in [
            (of_certificate(CertificateError::UnknownIssuer), stranger),
            (of_certificate(CertificateError::BadSignature), stranger),
            (of_certificate(other("CaUsedAsEndEntity")), stranger),
            (
                of_certificate(CertificateError::Expired),
                "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: ",
            ),
            (
                of_certificate(misnamed),
                "tls: failed to verify certificate: x509: certificate is valid for b.svc, 10.0.0.1, not a.svc",
            ),
            (of_certificate(other("IssuerNotCrlSigner")), "tls: invalid peer certificate: issuer not crl signer"),
            (of_tls(InvalidMessage::InvalidContentType.into()), "tls: first record does not look like a TLS handshake"),
            (Error::new(ErrorKind::UnexpectedEof, "tls handshake eof"), "EOF"),
            (Error::from_raw_os_error(104), "read tcp 10.0.0.1:443: read: connection reset by peer"),
        ] {
            let told = unsecured("10.0.0.1", 443, &error);
            assert!(told.starts_with(want), "{told}");
        }
    }
}
