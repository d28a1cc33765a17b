//! A panic in what is played is a breach like any other: it has a timeline and a picture, can be made smaller, and has a command that
//! plays it again. What it says, and where, is on standard error as ever.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::{Happening, World};
use crate::invariants::Breach;

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "nothing-panics";
/// What the planted bug says.
const PLANTED: &str = "a scheduler that has work panics";

impl World {
    /// One more thing happens, and everything is looked at. Where that panics nothing else happens: what is left half done is only
    /// told of.
    pub(super) fn happens(&mut self, happening: Happening) {
        let both = || {
            self.happen(happening);
            self.check();
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(both)) {
            self.breaches.push(Breach::new(NAME, said(&*panic).to_owned()));
        }
    }
}

/// What a panic says.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it says nothing")
}

/// The planted bug. Nothing is said of it on standard error.
pub(super) fn planted() -> ! {
    resume_unwind(Box::new(PLANTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_panic_says_is_read() {
        let all: [(Box<dyn Any + Send>, &str); 3] =
            [(Box::new("a"), "a"), (Box::new("b".to_owned()), "b"), (Box::new(1), "it says nothing")];
        for (panic, expected) in all {
            assert_eq!(said(&*panic), expected);
        }
    }
}
