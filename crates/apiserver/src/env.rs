//! What the API logic takes from outside: the wall clock, random numbers, and calls of other servers.
//!
//! The simulator hands in its own, so that a seed decides every UID, generated name and timestamp.

use jiff::Timestamp;

use crate::call::{Call, CallError, Calling, Dialing};
use crate::metrics::ProcessStats;

/// The only source of nondeterminism in the pipeline besides the store.
pub trait Env: Send + Sync + 'static {
    /// The wall clock's time now.
    fn now(&self) -> Timestamp;
    /// A random number, uniform over all values.
    fn random(&self) -> u64;
    /// Calls another server. Without a way to do so, every call fails.
    fn call(&self, call: Call) -> Calling {
        let why = format!("this server makes no calls, so not to {}", call.url());
        Box::pin(std::future::ready(Err(CallError::Failed(why))))
    }
    /// Connects to the server that a call is for, to carry a stream.
    fn dial(&self, call: &Call) -> Dialing {
        let why = format!("this server makes no calls, so not to {}", call.url());
        Box::pin(std::future::ready(Err(std::io::Error::new(std::io::ErrorKind::Unsupported, why))))
    }
    /// Sets how much is logged: 0 to 3 is the usual, 4 and 5 tell more, 6 and more tell everything.
    ///
    /// # Errors
    /// Why it cannot be set.
    fn set_verbosity(&self, level: u8) -> Result<(), String> {
        Err(format!("the log cannot be set to {level} here"))
    }
    /// The process that the server runs in, if it is one.
    fn process(&self) -> Option<ProcessStats> {
        None
    }
}

/// The alphabet of generated names: no vowels and nothing easily misread, as Kubernetes does it.
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A random (version 4) UUID as text, the form of `metadata.uid`.
pub fn new_uid(env: &dyn Env) -> String {
    let (high, low) = (env.random(), env.random());
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        0x8000 | ((low >> 48) & 0x3fff),
        low & 0xffff_ffff_ffff,
    )
}

/// Five characters that are put behind a `generateName` prefix.
pub fn name_suffix(env: &dyn Env) -> String {
    let mut rest = env.random();
    let base = SUFFIX_ALPHABET.len() as u64;
    (0..5)
        .map(|_| {
            let at = usize::try_from(rest % base).unwrap_or(0);
            rest /= base;
            char::from(SUFFIX_ALPHABET[at])
        })
        .collect()
}

/// `metav1.Time` as text: RFC 3339 in UTC with whole seconds.
pub fn rfc3339_s(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Nothing ever happens in it.
    pub(crate) struct Still;
    impl Env for Still {
        fn now(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH
        }
        fn random(&self) -> u64 {
            0
        }
    }

    struct Counting(AtomicU64);
    impl Env for Counting {
        fn now(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH
        }
        fn random(&self) -> u64 {
            self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
        }
    }

    #[test]
    fn forms() {
        let env = Counting(AtomicU64::new(1));
        let uid = new_uid(&env);
        assert_eq!(uid.len(), 36);
        assert_eq!(&uid[14..15], "4");
        assert!(matches!(&uid[19..20], "8" | "9" | "a" | "b"));
        assert_ne!(new_uid(&env), new_uid(&env));
        assert_eq!(name_suffix(&env).len(), 5);
        assert_eq!(rfc3339_s(Timestamp::UNIX_EPOCH), "1970-01-01T00:00:00Z");
    }
}
