//! Connections of whom nobody knows yet whether they may call.
//!
//! Whoever reaches the node comes as often as he likes and says nothing: a guest, for one. So not all connections are for
//! strangers: where there are too many of them, the one that has been there longest makes room. The API server has shown its
//! certificate long before.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::lock;

/// Those who are there, the first first, each with what goes when it has to.
#[derive(Default)]
struct Queue {
    last: u64,
    there: VecDeque<(u64, oneshot::Sender<()>)>,
}

/// All strangers.
pub(super) struct Strangers {
    most: usize,
    queue: Arc<Mutex<Queue>>,
}

impl Strangers {
    /// So many at a time.
    pub fn new(most: usize) -> Self {
        Self { most, queue: Arc::default() }
    }

    /// One more, in place of another if there are too many.
    pub fn enter(&self) -> Stranger {
        let (stays, goes) = oneshot::channel();
        let mut queue = lock(&self.queue);
        queue.last += 1;
        let number = queue.last;
        queue.there.push_back((number, stays));
        if queue.there.len() > self.most {
            queue.there.pop_front();
        }
        Stranger { number, goes, queue: self.queue.clone() }
    }
}

/// One of them, until this is dropped.
pub(super) struct Stranger {
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

impl Drop for Stranger {
    fn drop(&mut self) {
        lock(&self.queue).there.retain(|(number, _)| *number != self.number);
    }
}
