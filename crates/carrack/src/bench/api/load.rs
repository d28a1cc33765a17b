#![expect(clippy::disallowed_methods, reason = "shell: it measures time")]
//! Requests by many clients, each with one in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::task::JoinSet;

use super::figures::Figure;
use crate::wire::{Connection, Endpoint};

/// One request of a load.
pub struct Request {
    pub method: &'static str,
    pub path: String,
    pub content_type: &'static str,
    pub body: Vec<u8>,
}

/// Connections that are kept from one load to the next.
pub struct Clients {
    endpoint: Endpoint,
    connections: Vec<Connection>,
}

/// An error text, with a bound.
pub fn excerpt(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(400)]).into_owned()
}

impl Clients {
    /// So many of them.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn connect(endpoint: &Endpoint, count: usize) -> anyhow::Result<Self> {
        let mut connections = Vec::new();
        for _ in 0..count {
            connections.push(endpoint.connect().await?);
        }
        Ok(Self { endpoint: endpoint.clone(), connections })
    }

    /// Makes the requests 0 to `count`, and measures each. `replies` sees each reply's body.
    ///
    /// # Errors
    /// A request failed.
    pub async fn run(
        &mut self,
        name: &'static str,
        count: usize,
        make: impl Fn(usize) -> Request + Send + Sync + 'static,
        replies: impl Fn(usize, &[u8]) + Send + Sync + 'static,
    ) -> anyhow::Result<Figure> {
        self.run_at(name, count, Duration::ZERO, make, replies).await
    }

    /// The same, with so much time from one request to the next at least, whoever makes it.
    ///
    /// # Errors
    /// A request failed.
    pub async fn run_at(
        &mut self,
        name: &'static str,
        count: usize,
        every: Duration,
        make: impl Fn(usize) -> Request + Send + Sync + 'static,
        replies: impl Fn(usize, &[u8]) + Send + Sync + 'static,
    ) -> anyhow::Result<Figure> {
        let shared = Arc::new((AtomicUsize::new(0), make, replies));
        let mut clients = JoinSet::new();
        let first = Instant::now();
        for mut connection in self.connections.drain(..) {
            let (shared, endpoint) = (Arc::clone(&shared), self.endpoint.clone());
            clients.spawn(async move {
                let (next, make, replies) = &*shared;
                let mut latencies_us = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return Ok((connection, latencies_us));
                    }
                    if !every.is_zero() {
                        let due = u32::try_from(number).map_or(Duration::MAX, |number| every.saturating_mul(number));
                        tokio::time::sleep(due.saturating_sub(first.elapsed())).await;
                    }
                    let Request { method, path, content_type, body } = make(number);
                    let began = Instant::now();
                    let (status, reply) = connection.exchange(&endpoint, method, &path, content_type, &body).await?;
                    latencies_us.push(u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX));
                    anyhow::ensure!((200..300).contains(&status), "{method} {path}: {status}: {}", excerpt(reply));
                    replies(number, reply);
                }
            });
        }
        let mut latencies_us = Vec::with_capacity(count);
        while let Some(client) = clients.join_next().await {
            let (connection, own) =
                client.context("a client panicked")?.with_context(|| format!("while measuring {name}"))?;
            self.connections.push(connection);
            latencies_us.extend(own);
        }
        Ok(Figure::of(name, latencies_us, first.elapsed().as_secs_f64()))
    }
}
