//! Seeded randomness. A core that needs chance gets one of these, so that a seed decides a run.

use std::borrow::Borrow;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};

/// A stream of random numbers from a seed. The same seed gives the same stream on every machine.
#[derive(Clone, Debug)]
pub struct Rng(ChaCha8Rng);

/// Characters of generated names: Kubernetes' choice, without vowels and look-alikes
/// (apimachinery/pkg/util/rand).
const NAME_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

impl Rng {
    /// A stream from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }
    /// A stream of its own for a part with this name, so that one part's draws don't shift another's.
    /// It depends on the names of all forks down to it, in their order.
    #[must_use]
    pub fn fork(&self, label: &str) -> Self {
        let parent = self.0.get_seed();
        let mut seed = [0; 32];
        for (word, n) in seed.chunks_exact_mut(8).zip(0_u8..) {
            let bytes: Vec<u8> = [n].into_iter().chain(parent).chain(label.bytes()).collect();
            word.copy_from_slice(&fnv1a(&bytes).to_le_bytes());
        }
        Self(ChaCha8Rng::from_seed(seed))
    }
    /// Any number.
    pub fn u64(&mut self) -> u64 {
        self.0.next_u64()
    }
    /// A number below `n`; 0 when `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The bias of a plain remainder is below n/2^64, which no test here can see.
        self.u64().checked_rem(n).unwrap_or(0)
    }
    /// True once in `n` times on average; never when `n` is 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.below(n) == 0
    }
    /// A duration spread evenly over `base` to `base * (1 + percent/100)`.
    pub fn jitter(&mut self, base: std::time::Duration, percent: u32) -> std::time::Duration {
        let extra = base.as_nanos().saturating_mul(u128::from(percent)) / 100;
        base + std::time::Duration::from_nanos(self.below(u64::try_from(extra).unwrap_or(u64::MAX)))
    }
    /// `len` characters fit for the end of a name.
    pub fn suffix(&mut self, len: usize) -> String {
        (0..len).map(|_| char::from(NAME_ALPHABET[self.below(27) as usize])).collect()
    }
}

/// FNV-1a, 64 bits: a small hash with a fixed definition, for derived names.
#[must_use]
pub fn fnv1a(bytes: impl IntoIterator<Item = impl Borrow<u8>>) -> u64 {
    bytes
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte.borrow())).wrapping_mul(0x0100_0000_01b3))
}

/// `len` characters fit for the end of a name, derived from `parts`: a child's name is a function of
/// its parent's UID and its role, so that making it twice makes it once.
#[must_use]
pub fn derived_suffix(parts: &[&str], len: usize) -> String {
    let mut hash = fnv1a(parts.iter().flat_map(|part| part.bytes().chain([0])));
    (0..len)
        .map(|_| {
            let c = NAME_ALPHABET[(hash % 27) as usize];
            hash = fnv1a(hash.to_le_bytes());
            char::from(c)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forks_differ_by_their_names_in_order() {
        let root = Rng::new(7);
        let first = |rng: Rng| rng.clone().u64();
        assert_eq!(first(root.fork("a").fork("b")), first(root.fork("a").fork("b")));
        assert_ne!(first(root.fork("a").fork("b")), first(root.fork("b").fork("a")));
        assert_ne!(first(root.fork("a").fork("a")), first(root.clone()));
    }
}
