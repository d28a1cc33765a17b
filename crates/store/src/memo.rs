//! What a reader derived from an entry, kept with it as long as it is likely to be asked for again.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

type Derived = Arc<dyn Any + Send + Sync>;

/// A place for what one kind of reader derives; the store does not look into it.
#[derive(Default)]
pub struct Memo(Mutex<Option<Derived>>);

impl Memo {
    /// What is kept, or what is made now. Of two who make it at the same time both get the first.
    pub fn get_or_make(&self, make: impl FnOnce() -> Derived) -> Derived {
        if let Some(kept) = &*self.lock() {
            return Arc::clone(kept);
        }
        // Nobody waits for it, and it may panic.
        let made = make();
        Arc::clone(self.lock().get_or_insert(made))
    }

    /// Who asks next makes it anew.
    pub(crate) fn forget(&self) {
        let kept = self.lock().take();
        // What it is made of goes when nobody waits for the place.
        drop(kept);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Derived>> {
        // It is replaced as a whole, so poison means nothing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_once_until_it_is_forgotten() {
        let (memo, mut made) = (Memo::default(), 0);
        let mut get = || {
            let derived = memo.get_or_make(|| {
                made += 1;
                Arc::new(made)
            });
            derived.downcast_ref::<i32>().copied()
        };
        assert_eq!([get(), get()], [Some(1), Some(1)]);
        memo.forget();
        assert_eq!([get(), get()], [Some(2), Some(2)]);
        let at_once = memo.get_or_make(|| {
            memo.forget();
            Arc::new(0)
        });
        assert_eq!(at_once.downcast_ref::<i32>(), Some(&2), "kept, and so nothing is made");
    }
}
