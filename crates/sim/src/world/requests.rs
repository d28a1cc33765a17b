//! Requests and watches on their way between a role and the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, ApiResponse, CallId, Input, Method, WatchItem, fnv1a, to_http};

use super::{End, Given, Happening, PUMP, SPIN_LIMIT, SPIN_WINDOW, WAKE_LIMIT, World};
use crate::invariants::Breach;
use crate::leaders::Write;
use crate::net::{Passage, Reply};
use crate::plants::Bug;
use crate::role::Role;
use crate::server::{Asked, ConnId, Flight, FlightId, Polled, result_of, stream_of};
use crate::trace::Weight;

/// How long a request waits for its seat at the most.
const MAX_WAIT: Duration = Duration::from_secs(15);
/// How lines begin that only tell how far a watch is.
const BOOKMARK: &[u8] = b"{\"type\":\"BOOKMARK\"";
/// Marks a binding that arrives after its sender has given it up.
const LATE: &str = " (late)";
/// How soon it is known that a request is lost that is meant to be.
const LOST_AFTER: Duration = Duration::from_secs(1);

impl World {
    pub(super) fn send(&mut self, role: Role, life: u32, asked: Asked, request: ApiRequest) {
        let now = self.queue.now();
        let idempotent =
            matches!(request.method, Method::Get | Method::Put | Method::Delete) && matches!(asked, Asked::Call(_));
        let request = if life == 0 { request } else { self.tampered(role, request) };
        let mut label = label(&request);
        self.count(role, &label, &request.body);
        let mut passage = self.net.send(now, role, idempotent);
        // An extender of somebody else binds without saying what it rests on: nothing can be made of one that is late.
        let foreign = role == Role::Extender;
        if label.ends_with("/binding")
            && !foreign
            && let Some(late) = self.net.late_binding()
        {
            passage = late;
            label.push_str(LATE);
            if self.options.hint() == Some(Bug::TermlessBindings) {
                self.doomed = Some((role, life));
            }
        }
        if self.loses(role, &request) {
            passage = Passage { arrives: None, again: None, reply: Reply::Lost(LOST_AFTER) };
        }
        if let Some(arrives) = self.gives_up(role, &request) {
            passage = Passage { arrives: Some(arrives), again: None, reply: Reply::Lost(LOST_AFTER) };
        }
        let late = self.fate.request(&request).or_else(|| self.delays(role, &request));
        let late = late.or_else(|| {
            let fails = self.swarm.others.services;
            let (planted, of) = (self.options.hint(), (role, life));
            fails.then(|| crate::links::delay(of, &request, planted, &self.observer, &self.root)).flatten()
        });
        let (root, fails) = (&self.root, self.swarm.others.contents);
        let of_contents = crate::snapshots::late((role, life), &request, &self.observer, root).filter(|_| fails);
        if let Some((_, Some(back))) = of_contents {
            self.queue.after(Duration::ZERO, Happening::Dies(role, life, back));
        }
        let late = late.or(of_contents.map(|(delay, _)| delay));
        if let Some(delay) = late.filter(|_| passage.arrives.is_some()) {
            passage = Passage { arrives: Some(delay), again: None, reply: Reply::After(Duration::ZERO) };
        }
        if matches!(role, Role::VirtController | Role::Cloner) && request.method != Method::Get {
            self.fate.wrote(&request.path);
        }
        if role == self.cloner() && request.method == Method::Delete {
            let (arrives, answered) = self.fate.delete();
            if !arrives {
                passage = Passage { arrives: None, again: None, reply: Reply::Lost(LOST_AFTER) };
            } else if !answered {
                passage.reply = Reply::Lost(LOST_AFTER);
            }
        }
        if super::calls::is_call(&request) {
            return self.call(role, life, asked, label, request, passage);
        }
        if crate::tokens::Issuer::is_asked(&request) {
            return self.issue(role, life, asked, &label, &request, passage);
        }
        let server = usize::try_from(self.servers_rng.below(self.server.count() as u64)).unwrap_or(0);
        let passage = self.net.unreached(now, role, server).unwrap_or(passage);
        let request = match to_http(request, "") {
            Ok(request) => request,
            Err(error) => return self.reply(role, life, asked, Err(error), Duration::ZERO),
        };
        match passage.arrives {
            Some(delay) => {
                let late = matches!(passage.reply, Reply::Lost(seen) if seen < delay);
                let reply = if late { None } else { Some(passage.reply) };
                if let (true, Reply::Lost(seen)) = (late, passage.reply) {
                    self.lost(role, life, asked, &label, seen);
                }
                // A second arrival of the request is answered to nobody.
                if let Some(again) = passage.again {
                    let copy = request.clone();
                    let second =
                        self.server.depart(server, (role, life), asked, now, None, format!("{label} (again)"), copy);
                    self.queue.after(again, Happening::Arrive(second));
                }
                let id = self.server.depart(server, (role, life), asked, now, reply, label, request);
                self.queue.after(delay, Happening::Arrive(id));
            }
            None => {
                if let Reply::Lost(seen) = passage.reply {
                    self.lost(role, life, asked, &label, seen);
                }
            }
        }
    }

    /// A request for a token, which is answered here: what a token says is the simulator's own.
    fn issue(&mut self, role: Role, life: u32, asked: Asked, label: &str, request: &ApiRequest, passage: Passage) {
        let issued = passage.arrives.map(|delay| {
            let (result, takes) = self.issuer.issue(self.queue.now(), request, &self.observer);
            (result, delay + takes)
        });
        match (issued, passage.reply) {
            (Some((result, delay)), Reply::After(back)) => self.reply(role, life, asked, result, delay + back),
            (_, Reply::Lost(seen)) => self.lost(role, life, asked, label, seen),
            (None, Reply::After(_)) => {}
        }
    }

    /// Counts what a role sends, to find one that repeats itself without end.
    pub(super) fn count(&mut self, role: Role, label: &str, body: &[u8]) {
        let now = self.queue.now();
        let is_unkept = self.swarm.forgetful && crate::forgetful::is_status_of_pod(label);
        let Some(process) = self.processes.get_mut(&role) else { return };
        let (since, sent) = &mut process.sent;
        if now.since(*since) > SPIN_WINDOW {
            (*since, *sent) = (now, BTreeMap::new());
        }
        let words = crate::forgetful::words(label, body);
        let count = sent.entry(fnv1a(label.as_bytes().iter().chain(words.iter()))).or_default();
        *count += 1;
        let is_calm = self.healed.is_some_and(|healed| healed <= *since);
        if *count > SPIN_LIMIT {
            let what = format!("{role} has sent {label} {count} times since {}", since.rfc3339());
            self.breaches.push(Breach::new("roles-do-not-spin", what));
        } else if is_unkept && is_calm && *count > crate::forgetful::MOST {
            let what = format!("{role} has said the same {count} times with {label} since {}", since.rfc3339());
            self.breaches.push(Breach::new(crate::forgetful::NAME, what));
        }
    }

    /// Counts how often a role is woken at one instant, to find one that wakes itself without end.
    pub(super) fn woken(&mut self, role: Role) {
        let now = self.queue.now();
        let Some(process) = self.processes.get_mut(&role) else { return };
        let (at, count) = &mut process.woken;
        if *at != now {
            (*at, *count) = (now, 0);
        }
        *count += 1;
        if *count > WAKE_LIMIT {
            let what = format!("{role} was woken by {count} timers at {}", now.rfc3339());
            self.breaches.push(Breach::new("roles-do-not-spin", what));
        }
    }

    /// The client learns, after a while, that no reply comes.
    pub(super) fn lost(&mut self, role: Role, life: u32, asked: Asked, label: &str, seen: Duration) {
        self.act(format_args!("{role} {label}: no reply"));
        self.reply(role, life, asked, Err(ApiError::Transport("no reply".into())), seen);
    }

    pub(super) fn reply(
        &mut self,
        role: Role,
        life: u32,
        asked: Asked,
        result: Result<ApiResponse, ApiError>,
        after: Duration,
    ) {
        let given = match (asked, result) {
            (Asked::Call(id), result) => Given::Api(id, result),
            (Asked::Watch(id), Err(error)) => Given::Closed(id, Some(error)),
            (Asked::Watch(_), Ok(_)) => return,
        };
        self.queue.after(after, Happening::Give(role, life, Box::new(given)));
    }

    pub(super) fn arrive(&mut self, id: FlightId) {
        self.overwritten(id);
        // Who binds anew after a crash knows nothing of what its predecessor sent. That is of a term that is over; where nobody is
        // elected, the API server is in the same process, as in `carrack up`, and what has not arrived ends with both.
        let dead = |flight: &Flight| flight.label.ends_with(LATE) && self.life(flight.role) != Some(flight.life);
        let dead = |flight: &Flight| !self.swarm.elect && dead(flight);
        if self.server.flight(id).is_some_and(|flight| dead(flight) || self.comes_too_late(flight)) {
            drop(self.server.drop_flight(id));
            return;
        }
        if self.server.arrive(id) {
            return self.poll(id);
        }
        if let Some(flight) = self.server.drop_flight(id) {
            self.unanswered(&flight, "the API server is not there");
        }
    }

    /// Whether somebody takes a hollow node out of the cluster that has its power again: he would see that, and let it be, since
    /// a kubelet registers its node only when it starts.
    fn comes_too_late(&self, flight: &Flight) -> bool {
        let removed = flight.label.strip_prefix("DELETE /api/v1/nodes/").filter(|_| flight.role == Role::User);
        let Some(name) = removed.and_then(|rest| rest.split_whitespace().next()) else { return false };
        (0..crate::controllers::NODES)
            .any(|n| !self.vanished.contains(&n) && crate::controllers::nodes().name(n) == name)
    }

    pub(super) fn unanswered(&mut self, flight: &Flight, why: &str) {
        let Some(reply) = flight.reply else { return };
        let after = match reply {
            Reply::After(delay) => delay,
            Reply::Lost(seen) => (flight.sent + seen).since(self.queue.now()),
        };
        self.reply(flight.role, flight.life, flight.asked, Err(ApiError::Transport(why.into())), after);
    }

    pub(super) fn poll(&mut self, id: FlightId) {
        let write =
            self.server.flight(id).filter(|_| self.swarm.elect).and_then(|flight| Write::of(flight, &self.server));
        let polled = self.server.poll(id);
        self.breaches.extend(write.and_then(|write| write.look(&self.server)));
        if let Some(polled) = polled {
            self.polled(id, polled);
        }
        if let Some(wait) = self.server.mem.untold().map(|wait| wait * self.swarm.leisure)
            && self.telling.is_none_or(|at| self.queue.now() + wait < at)
        {
            self.telling = Some(self.queue.now() + wait);
            self.queue.after(wait, Happening::Progress);
        }
        self.pump_soon();
    }

    /// Watchers are told how far they know everything.
    pub(super) fn progress(&mut self) {
        if self.telling == Some(self.queue.now()) {
            self.telling = None;
            self.server.mem.tell_progress();
            self.pump_soon();
        }
    }

    fn pump_soon(&mut self) {
        if self.server.has_woken() && !self.pumping {
            self.pumping = true;
            self.queue.after(PUMP, Happening::Pump);
        }
    }

    pub(super) fn polled(&mut self, id: FlightId, polled: Polled) {
        match polled {
            Polled::Pending(wait) => self.queue.after(wait, Happening::Poll(id)),
            Polled::Waits => self.queue.after(MAX_WAIT, Happening::GiveUp(id)),
            Polled::Answered(flight, response) => {
                if let Some(class) = flight.class.clone() {
                    // Whoever answers is busy for a while with what is written to the client.
                    let busy = self.swarm.service.draw(&mut self.servers_rng);
                    let life = self.server.life(flight.server);
                    self.queue.after(busy, Happening::Leave(flight.server, life, Box::new(class)));
                }
                let response = self.overlooked(&flight, response);
                self.is_newest(&flight, &response);
                self.is_in_the_store(&flight, &response);
                self.answered(&flight, *response);
            }
        }
        self.seat();
    }

    /// Goes on with requests that have got their seats.
    pub(super) fn seat(&mut self) {
        for id in self.server.take_seated() {
            self.server.serve(id);
            self.queue.after(Duration::ZERO, Happening::Poll(id));
        }
    }

    /// One more request of somebody who asks too often, for which nobody waits.
    pub(super) fn flood(&mut self) {
        let now = self.queue.now();
        let request = ApiRequest::new(Method::Get, "/api/v1/namespaces/default/pods");
        let Ok(request) = to_http(request, "") else { return };
        let server = usize::try_from(self.servers_rng.below(self.server.count() as u64)).unwrap_or(0);
        let asked = Asked::Call(CallId(0));
        let id = self.server.depart(server, (Role::Flooder, 0), asked, now, None, "GET pods (flood)".into(), request);
        self.arrive(id);
    }

    /// What is asked for and nothing else, a list or an object, is as new as what was committed when it was asked for; and what was
    /// there then, and still is, is found.
    fn is_newest(&mut self, flight: &Flight, response: &carrack_apiserver::Response) {
        let asks_for_newest = flight.label.starts_with("GET ")
            && !["resourceVersion=", "continue="].iter().any(|option| flight.label.contains(option));
        if !asks_for_newest || !matches!(flight.asked, Asked::Call(_)) {
            return;
        }
        match response.status().as_u16() {
            200 => {}
            404 => return self.is_absent(flight, response),
            _ => return,
        }
        let Some(shown) = list_revision(response.body()) else {
            let Some(object) = response.body().first() else { return };
            self.ledger.update(&self.server.mem);
            if let Some(outdated) = self.ledger.outdated(&object, flight.known) {
                let what = format!(
                    "{} {} shows {outdated}; {} was known when it was asked for",
                    flight.role, flight.label, flight.known
                );
                self.breaches.push(Breach::new("lists-are-newest", what));
            }
            return;
        };
        if shown < flight.known.0 {
            let what = format!(
                "{} {} shows {shown}, and {} was known when it was asked for",
                flight.role, flight.label, flight.known
            );
            self.breaches.push(Breach::new("lists-are-newest", what));
        }
    }

    /// What is said not to be there is not, or was not.
    fn is_absent(&mut self, flight: &Flight, response: &carrack_apiserver::Response) {
        let Some(answer) = response.body().first() else { return };
        self.ledger.update(&self.server.mem);
        if let Some(hidden) = self.ledger.hidden(&flight.label, &answer, flight.known) {
            let what = format!("{} {}: {hidden}; {} was known", flight.role, flight.label, flight.known);
            self.breaches.push(Breach::new("lists-are-newest", what));
        }
    }

    pub(super) fn answered(&mut self, flight: &Flight, response: carrack_apiserver::Response) {
        let now = self.queue.now();
        let Flight { role, life, asked, .. } = *flight;
        let status = response.status().as_u16();
        match role {
            Role::Meddler => self.breaches.extend(crate::meddler::answered(status, &flight.label)),
            Role::Onlooker => self.breaches.extend(crate::onlooker::answered(status, &flight.label)),
            _ => {}
        }
        let lost = if matches!(flight.reply, Some(Reply::Lost(_))) { ", its reply is lost" } else { "" };
        let weight = if flight.label.starts_with("GET")
            || flight.label.contains("/leases")
            || flight.label.contains("/events")
        {
            Weight::Noise
        } else {
            Weight::Act
        };
        let revision = carrack_store::Store::revision(&*self.server.mem);
        let label = &flight.label;
        self.trace.line(now, weight, format_args!("{role} {label} → {status} at {revision}{lost}"));
        match (asked, flight.reply) {
            (_, None) => {}
            (_, Some(Reply::Lost(_))) => self.unanswered(flight, "the reply is lost"),
            (Asked::Call(_), Some(Reply::After(delay))) => {
                let is_made = response.status().is_success() && !label.starts_with("GET");
                let result = match self.net.denial().filter(|_| is_made) {
                    Some(denial) => {
                        self.act(format_args!("{role} {label}: it was made, and is answered with {denial}"));
                        Err(denial)
                    }
                    None => result_of(response),
                };
                self.reply(role, life, asked, result, delay);
            }
            (Asked::Watch(id), Some(Reply::After(delay))) => match stream_of(response) {
                Ok((lines, timeout_s)) if role == Role::Reader || self.life(role) == Some(life) => {
                    let conn = self.server.connect(now, flight, id, lines);
                    self.ledger.update(&self.server.mem);
                    self.ledger.opened(conn, &flight.label, flight.known);
                    self.opened_for_fate(role, conn, &flight.label);
                    if let Some(process) = self.processes.get_mut(&role) {
                        process.conns.insert(id, conn);
                    }
                    self.queue.after(Duration::from_secs(timeout_s), Happening::End(conn, End::Timeout));
                    if let Some(life) = self.net.breaks(role) {
                        self.queue.after(life, Happening::End(conn, End::Break));
                    }
                }
                Ok(_) => {}
                Err(error) => self.reply(role, life, asked, Err(error), delay),
            },
        }
    }

    pub(super) fn pump(&mut self) {
        self.pumping = false;
        let said = self.server.pump();
        self.ledger.update(&self.server.mem);
        for (id, items) in said {
            for item in items {
                if let WatchItem::Event(line) = &item {
                    self.lines += 1;
                    if self.leaves_out(id, line) {
                        continue;
                    }
                    self.breaches.extend(self.ledger.said(id, line));
                }
                self.put(id, item);
            }
        }
        self.pump_soon();
    }

    /// Puts an item of a watch on its way, behind those that are on it.
    pub(super) fn put(&mut self, id: ConnId, item: WatchItem) {
        let now = self.queue.now();
        let cloner = self.cloner();
        let Some(conn) = self.server.conn(id) else { return };
        let tells = matches!(&item, WatchItem::Event(line) if !line.starts_with(BOOKMARK));
        let late = if conn.role == cloner && tells { self.fate.line(id) } else { Duration::ZERO };
        let at = (self.net.stream(now, conn.role, conn.server) + late).max(conn.last);
        conn.last = at;
        let first = conn.queue.is_empty();
        conn.queue.push_back((at, item));
        if first {
            self.queue.at(at, Happening::Item(id));
        }
    }

    pub(super) fn item(&mut self, id: ConnId) {
        let now = self.queue.now();
        let Some(conn) = self.server.conn(id) else { return };
        // Where lines were hurried, nothing is due any more when they were to come.
        let Some((_, item)) = conn.queue.pop_front_if(|(due, _)| *due <= now) else { return };
        let (role, life, watch) = (conn.role, conn.life, conn.watch);
        if let Some((at, _)) = conn.queue.front() {
            self.queue.at(*at, Happening::Item(id));
        }
        if matches!(item, WatchItem::Closed(_)) {
            self.server.hang_up(id);
            self.ledger.closed(id);
            if let Some(process) = self.processes.get_mut(&role) {
                process.conns.remove(&watch);
            }
        }
        if self.life(role) == Some(life) {
            match &item {
                WatchItem::Event(bytes) => {
                    self.noise(format_args!("{role} watch #{} says {} bytes", watch.0, bytes.len()))
                }
                WatchItem::Closed(_) => self.noise(format_args!("{role} watch #{} ends", watch.0)),
            }
            let item = self.misheard(role, item);
            self.step(role, Input::Watch { id: watch, item });
        }
    }

    pub(super) fn end(&mut self, id: ConnId, end: End) {
        let Some(conn) = self.server.conn(id) else { return };
        if !conn.cut() {
            return;
        }
        let (role, watch) = (conn.role, conn.watch);
        let closed = match end {
            End::Timeout => None,
            End::Break => {
                self.act(format_args!("{role} watch #{} breaks", watch.0));
                // What was on its way may arrive before the client sees the end, or not.
                if self.net.coin(role)
                    && let Some(conn) = self.server.conn(id)
                {
                    conn.queue.truncate(1);
                }
                Some(ApiError::Transport("the connection broke".into())).filter(|_| self.net.coin(role))
            }
        };
        self.put(id, WatchItem::Closed(closed));
    }
}

/// The revision that a list is of; none for what is no list.
fn list_revision(body: &carrack_apiserver::Body) -> Option<u64> {
    let head = body.first()?;
    let head = String::from_utf8_lossy(head.get(..head.len().min(300))?).into_owned();
    let (kind, rest) = head.split_once("\"metadata\":{\"resourceVersion\":\"")?;
    if !kind.contains("List\"") {
        return None;
    }
    rest.split('"').next()?.parse().ok()
}

/// A request for the trace: its method, and its path without what only watches and lists differ in.
pub(super) fn label(request: &ApiRequest) -> String {
    let method = match request.method {
        Method::Get => "GET",
        Method::Post => "POST",
        Method::Put => "PUT",
        Method::Patch => "PATCH",
        Method::Delete => "DELETE",
    };
    format!("{method} {}", request.path)
}
