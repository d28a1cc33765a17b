#![expect(clippy::disallowed_methods, reason = "shell: it looks at the clock to know how long ago somebody was told")]
//! A watch that has much to tell tells it in larger pieces.
//!
//! ```text
//!   something comes ─► told at once ─► the next within PACE waits until that is over ─► all that is there is told ─► …
//! ```
//!
//! To wake a connection, to encrypt a record and to call the kernel costs several times as much as one more event in a piece that goes
//! out anyway. Whoever watches what changes seldom hears of it at once, as before; what a busy collection costs follows from its
//! watchers and from how much there is to tell, and no longer from how often something is told.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use tokio::time::{Instant, Sleep, sleep_until};

/// The least time between two times that a watcher is told something.
const PACE: Duration = Duration::from_millis(2);

/// Tells what another stream does, at that pace.
pub(super) struct Paced<S> {
    inner: S,
    /// Something was told since there was nothing to tell.
    is_telling: bool,
    /// Nothing is told before this.
    rests_until: Option<Instant>,
    /// Waits for that, since something came.
    rest: Option<Pin<Box<Sleep>>>,
}

impl<S> Paced<S> {
    pub(super) fn new(inner: S) -> Self {
        Self { inner, is_telling: false, rests_until: None, rest: None }
    }
}

impl<S: Stream + Unpin> Stream for Paced<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let this = self.get_mut();
        if let Some(until) = this.rests_until {
            if let Some(rest) = &mut this.rest {
                ready!(rest.as_mut().poll(cx));
            } else if Instant::now() < until {
                // Until it is over nobody wakes this for what comes: it is not looked at.
                ready!(this.rest.insert(Box::pin(sleep_until(until))).as_mut().poll(cx));
            }
            (this.rests_until, this.rest) = (None, None);
        }
        let told = this.inner.poll_next_unpin(cx);
        match told {
            Poll::Ready(_) => this.is_telling = true,
            Poll::Pending if std::mem::take(&mut this.is_telling) => this.rests_until = Some(Instant::now() + PACE),
            Poll::Pending => {}
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::sync::mpsc;
    use tokio::time::advance;

    use super::*;

    /// What is told now.
    async fn told<S: Stream<Item = u32> + Unpin>(paced: &mut Paced<S>) -> Vec<u32> {
        let mut all = Vec::new();
        while let Some(Some(one)) = paced.next().now_or_never() {
            all.push(one);
        }
        all
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_seldom_is_told_at_once_and_what_comes_often_together() {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let mut paced = Paced::new(futures::stream::poll_fn(move |cx| receiver.poll_recv(cx)));
        let send = |numbers: &[u32]| numbers.iter().for_each(|number| sender.send(*number).expect("it is there"));
        let ms = Duration::from_millis;
        assert!(told(&mut paced).await.is_empty());
        send(&[1, 2]);
        assert_eq!(told(&mut paced).await, [1, 2], "all that is there");
        send(&[3]);
        assert!(told(&mut paced).await.is_empty(), "it was told something just now");
        advance(ms(1)).await;
        send(&[4]);
        assert!(told(&mut paced).await.is_empty());
        advance(ms(2)).await;
        assert_eq!(told(&mut paced).await, [3, 4]);
        advance(ms(10)).await;
        send(&[5]);
        assert_eq!(told(&mut paced).await, [5], "nothing was told for long");
    }

    #[tokio::test(start_paused = true)]
    async fn who_rests_is_woken() {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let mut paced = Paced::new(futures::stream::poll_fn(move |cx| receiver.poll_recv(cx)));
        sender.send(1).expect("it is there");
        assert_eq!(paced.next().await, Some(1));
        assert_eq!(paced.next().now_or_never(), None, "it waits");
        let began = Instant::now();
        sender.send(2).expect("it is there");
        assert_eq!(paced.next().await, Some(2));
        assert!((PACE..PACE * 2).contains(&began.elapsed()), "{:?}", began.elapsed());
        drop(sender);
        assert_eq!(paced.next().await, None);
    }
}
