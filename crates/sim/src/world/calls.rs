//! Calls to the handlers of guests (`freeze`, `copyvolumes` …), and of other servers behind the API server: what becomes of one
//! on its way, there, and on its way back.

use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, ApiResponse, StatusError, Time};
use carrack_types::well_known::kubevirt::SUBRESOURCES_GROUP;
use serde_json::Value;

use super::{Happening, World};
use crate::controllers::asks_for_metrics;
use crate::meters;
use crate::net::{Passage, Reply};
use crate::node::named;
use crate::observer::{is_true, text, uid};
use crate::plants::Bug;
use crate::role::Role;
use crate::server::Asked;

/// A handler that does not answer is given up after this.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A call that is on its way.
pub(super) struct Called {
    role: Role,
    life: u32,
    asked: Asked,
    label: String,
    request: ApiRequest,
    sent: Time,
    /// What the caller sees; none when it has been given up, or came twice.
    reply: Option<Reply>,
}

/// Whether a request is for a handler, or for one of the other servers.
pub(super) fn is_call(request: &ApiRequest) -> bool {
    let of_group = request.path.strip_prefix("/apis/").is_some_and(|path| path.starts_with(SUBRESOURCES_GROUP));
    // What is asked of a machine, and not of its instance, the API server does itself.
    let for_handler = of_group && request.path.contains("/virtualmachineinstances/");
    for_handler || meters::is_asked(request) || asks_for_metrics(request)
}

/// The machine of a call, and what is to be done.
fn of(path: &str) -> Option<(String, &str)> {
    let mut parts = path.split('/').skip_while(|part| *part != "namespaces").skip(1);
    let (namespace, _, name, sub) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    Some((format!("{namespace}/{name}"), sub))
}

fn failed(why: &str) -> Result<ApiResponse, ApiError> {
    let (reason, message) = ("InternalError".to_owned(), why.to_owned());
    Err(ApiError::Status(Box::new(StatusError { code: 500, reason, message, ..StatusError::default() })))
}

impl World {
    pub(super) fn call(
        &mut self,
        role: Role,
        life: u32,
        asked: Asked,
        label: String,
        request: ApiRequest,
        passage: Passage,
    ) {
        let sent = self.queue.now();
        let Some(delay) = passage.arrives else {
            if let Reply::Lost(seen) = passage.reply {
                self.lost(role, life, asked, &label, seen);
            }
            return;
        };
        let mut reply = Some(passage.reply);
        if let Reply::Lost(seen) = passage.reply
            && seen < delay
        {
            self.lost(role, life, asked, &label, seen);
            reply = None;
        }
        if let Some(again) = passage.again {
            let (label, request) = (format!("{label} (again)"), request.clone());
            let called = Called { role, life, asked, label, request, sent, reply: None };
            self.queue.after(again, Happening::Called(Box::new(called)));
        }
        let called = Called { role, life, asked, label, request, sent, reply };
        self.queue.after(delay, Happening::Called(Box::new(called)));
    }

    /// A call arrives. A handler may refuse it, fail when it is done, or die before it answers.
    pub(super) fn called(&mut self, called: Called) {
        let Called { role, life, asked, label, request, sent, reply } = called;
        let fate = if self.swarm.others.calls { self.calls_rng.below(12) } else { 12 };
        let body = serde_json::from_slice(&request.body).unwrap_or_default();
        // Nobody goes by what comes of it.
        let is_unasked = !matches!(reply, Some(Reply::After(_))) || self.life(role) != Some(life);
        let mut takes = Duration::ZERO;
        let done = match (fate, of(&request.path)) {
            (0, _) => failed("it hiccups"),
            _ if meters::is_asked(&request) => self.server.meters.serve(&request, &self.observer),
            _ if asks_for_metrics(&request) => {
                let lies = self.swarm.others.metrics;
                let (reply, late) = self.autoscaled.serve(self.queue.now(), lies, &self.observer);
                takes = late;
                Ok(reply)
            }
            (_, Some((machine, sub))) => match self.call_guest(&machine, sub, &body, is_unasked) {
                Ok(()) => Ok(ApiResponse { status: 200, body: "{}".into() }),
                Err(why) => failed(&why),
            },
            (_, None) => failed("not found"),
        };
        let result = if fate == 1 { done.and(failed("it was too slow")) } else { done };
        let told = result.as_ref().err().map_or_else(|| "done".to_owned(), ToString::to_string);
        self.act(format_args!("{role} {label} → {told}"));
        match reply {
            None => {}
            Some(Reply::Lost(seen)) => {
                let left = (sent + seen).since(self.queue.now());
                self.lost(role, life, asked, &label, left);
            }
            Some(Reply::After(_)) if fate == 2 => self.lost(role, life, asked, &label, TIMEOUT),
            Some(Reply::After(back)) => self.reply(role, life, asked, result, takes + back),
        }
    }

    /// The handler of a machine's guest is asked for something.
    fn call_guest(&mut self, machine: &str, sub: &str, body: &Value, is_unasked: bool) -> Result<(), String> {
        if self.options.clones {
            return self.room.call(machine, sub, body);
        }
        let vmi = self.observer.get("vmi", machine).ok_or_else(|| format!("{machine} is not there"))?;
        if text(vmi, "/status/phase") != "Running" {
            return Err("VMI is not running".to_owned());
        }
        // A guest is not asked what its QEMU does.
        if sub != "copyvolumes" && !is_true(vmi, "AgentConnected") {
            return Err("VMI does not have guest agent connected".to_owned());
        }
        let now = self.queue.now();
        let node = named(&self.nodes, text(vmi, "/status/nodeName")).map(|node| node.number);
        let serves =
            |number: &u8| self.processes.get(&Role::VirtHandler(*number)).is_some_and(|process| process.works(now));
        let instance = uid(vmi).to_owned();
        let number = node.filter(serves).ok_or_else(|| "no virt-handler answers".to_owned())?;
        let is_deaf = self.bug() == Some(Bug::DeafThaws);
        let node = self.nodes.get_mut(&number).filter(|node| node.up).ok_or_else(|| "its node is down".to_owned())?;
        let follow = match sub {
            "freeze" => node.freeze(now, &instance, crate::backups::lasts(body))?,
            "unfreeze" if is_deaf => Vec::new(),
            "unfreeze" => node.thaw(now, &instance, is_unasked)?,
            "copyvolumes" => node.copy_for(now, &instance, body, &self.observer, &mut self.breaches)?,
            _ => return Err(format!("nobody knows {sub}")),
        };
        self.follow(number, follow);
        Ok(())
    }
}
