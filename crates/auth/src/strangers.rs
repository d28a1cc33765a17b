//! Connections of whom nobody knows yet what they may do.
//!
//! An agent's places are for all who come, and whoever reaches its node, a pod or a guest for one, comes as often as it likes and
//! says nothing. So not all places are for strangers: where there are too many of them, the one that has been there longest makes
//! room. A client that has a certificate has shown it long before.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Those who are there, the first first, each with what goes when it has to.
#[derive(Debug, Default)]
struct Queue {
    last: u64,
    there: VecDeque<(u64, oneshot::Sender<()>)>,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    // Entries are put in and taken out whole.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All strangers.
#[derive(Debug)]
pub struct Strangers {
    most: usize,
    queue: Arc<Mutex<Queue>>,
}

impl Strangers {
    /// So many at a time.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, queue: Arc::default() }
    }

    /// One more, in place of another if there are too many.
    #[must_use]
    pub fn enter(&self) -> Stranger {
        let (stays, goes) = oneshot::channel();
        let mut queue = lock(&self.queue);
        queue.last += 1;
        let number = queue.last;
        queue.there.push_back((number, stays));
        if queue.there.len() > self.most {
            queue.there.pop_front();
        }
        drop(queue);
        Stranger { number, goes, queue: Arc::clone(&self.queue) }
    }
}

/// One of them, until this is dropped.
#[derive(Debug)]
pub struct Stranger {
    number: u64,
    goes: oneshot::Receiver<()>,
    queue: Arc<Mutex<Queue>>,
}

impl Stranger {
    /// Returns when it has to go, once.
    pub async fn has_to_go(&mut self) {
        drop((&mut self.goes).await);
    }
}

/// Returns when who is connected has to go: never, once it is known and so no stranger any more.
pub async fn has_to_go(stranger: Option<&mut Stranger>) {
    match stranger {
        Some(stranger) => stranger.has_to_go().await,
        None => std::future::pending().await,
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        lock(&self.queue).there.retain(|(number, _)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_makes_room() {
        let strangers = Strangers::new(2);
        let [mut first, known, mut last] = [(); 3].map(|()| strangers.enter());
        has_to_go(Some(&mut first)).await;
        tokio::select! {
            biased;
            () = has_to_go(None) => panic!("nobody asks one who is known"),
            () = std::future::ready(()) => {}
        }
        drop(known);
        let _another = strangers.enter();
        assert!(last.goes.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        let _one_too_many = strangers.enter();
        last.has_to_go().await;
        drop((first, last));
        assert_eq!(lock(&strangers.queue).there.len(), 2);
    }
}
