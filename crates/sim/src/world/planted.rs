//! Bugs that are done to roles from outside: to what they send, and to what becomes of it.
//!
//! The roles' own code knows nothing of these. What a request, an effect or a commit becomes under each of them is decided
//! here, and nowhere else in the world.

use std::time::Duration;

use carrack_apiserver::{Response, Status};
use carrack_engine::{ApiRequest, CallId, DeleteOptions, Effect, Method, WatchItem};
use carrack_kubelet::Op;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{Happening, World};
use crate::answers::asks_for_a_volume;
use crate::chance::between;
use crate::extender::FILTER;
use crate::hosted::{Hosted, OwnOut};
use crate::observer::{Change, deleting, key_of, text, uid};
use crate::plants::Bug;
use crate::role::{Role, node_name};
use crate::server::{Asked, ConnId, Flight, FlightId};

/// How soon something is written again.
const AGAIN: Duration = Duration::from_millis(100);
/// How soon something is said that is otherwise than what was said before.
const LATER: Duration = Duration::from_secs(1);
/// An amount of memory that nobody asked for.
const FORGOTTEN: &str = "191Mi";
/// One in so many lines of watches is left out.
const LOST_ONE_IN: u64 = 97;

/// The body of a request, as JSON.
fn body(request: &ApiRequest) -> Value {
    serde_json::from_slice(&request.body).unwrap_or_default()
}

fn with_body(request: &ApiRequest, body: &Value) -> ApiRequest {
    ApiRequest { body: body.to_string().into(), ..request.clone() }
}

/// The same, whoever leads by then.
fn of_any_term(mut request: ApiRequest) -> ApiRequest {
    request.rests_on.retain(|premise| premise.term.is_none());
    request
}

impl World {
    /// Whether a process hung or was stopped a moment ago.
    fn has_just_gone_on(&self, role: Role) -> bool {
        self.processes.get(&role).is_some_and(|process| process.hang.hung(self.queue.now()))
    }

    /// What is sent instead of a request.
    pub(super) fn tampered(&mut self, role: Role, request: ApiRequest) -> ApiRequest {
        let is_unkept = self.swarm.forgetful && matches!(role, Role::Kubelet(_));
        let request = if is_unkept { crate::forgetful::kept(request) } else { request };
        match (self.bug(), role) {
            (Some(Bug::EndlessTerms), _) => return of_any_term(request),
            (Some(Bug::ActsUnlooked), _) if self.has_just_gone_on(role) => return of_any_term(request),
            (Some(Bug::RawNames), Role::Controllers | Role::Standby) => {
                return crate::controllers::with_raw_names(request);
            }
            (Some(Bug::TermlessBindings), Role::Scheduler | Role::StandbyScheduler)
                if request.path.ends_with("/binding") =>
            {
                return of_any_term(request);
            }
            (Some(Bug::OneNode), Role::Scheduler) if request.path.ends_with("/binding") => {
                let mut binding = body(&request);
                binding["target"]["name"] = node_name(1).into();
                return with_body(&request, &binding);
            }
            (Some(Bug::ZonesLost), Role::Scheduler) if request.path.ends_with("/binding") => {
                return crate::zones::without_labels(request);
            }
            (Some(Bug::LimitsUnheard), Role::Scheduler | Role::StandbyScheduler)
                if crate::controllers::asks_for_limits(&request) =>
            {
                return crate::controllers::of_nobody(request);
            }
            (Some(Bug::LimitsKept), Role::Controllers | Role::Standby) if crate::controllers::is_count(&request) => {
                return crate::controllers::uncounted(&request);
            }
            (Some(Bug::NominationsKept), Role::Scheduler) if request.path.ends_with("/status") => {
                let mut written = body(&request);
                if let Some(status) = written["status"].as_object_mut()
                    && status.get("nominatedNodeName").is_some_and(Value::is_null)
                {
                    status.remove("nominatedNodeName");
                }
                return with_body(&request, &written);
            }
            (Some(Bug::BindingsOverwrite), Role::Scheduler) if request.path.ends_with("/binding") => {
                let mut binding = body(&request);
                let other =
                    self.nodes.keys().map(|node| node_name(*node)).find(|node| binding["target"]["name"] != **node);
                binding["target"]["name"] = other.into();
                self.queue.after(LATER, Happening::Planted(role, Box::new(with_body(&request, &binding))));
            }
            (Some(Bug::BaselessBindings), Role::Scheduler) if request.path.ends_with("/binding") => {
                let mut binding = body(&request);
                if let Some(metadata) = binding["metadata"].as_object_mut() {
                    metadata.remove("resourceVersion");
                }
                return with_body(&request, &binding);
            }
            (Some(Bug::EndsTakenBack), Role::Kubelet(_)) if request.path.ends_with("/status") => {
                let mut status = body(&request);
                if request.path.contains("/pods/")
                    && matches!(text(&status, "/status/phase"), "Succeeded" | "Failed")
                    && let Some(metadata) = status["metadata"].as_object_mut()
                {
                    metadata.remove("resourceVersion");
                    status["status"]["phase"] = "Running".into();
                    let again = with_body(&request, &status);
                    self.queue.after(LATER, Happening::Planted(role, Box::new(again)));
                }
            }
            (Some(bug @ (Bug::CriticalEnded | Bug::CriticalRefused)), Role::Kubelet(_))
                if request.path.contains("/pods/critical") && request.path.ends_with("/status") =>
            {
                let reason = if bug == Bug::CriticalEnded { "Preempting" } else { "OutOfcpu" };
                let mut status = body(&request);
                status["status"]["phase"] = "Failed".into();
                status["status"]["reason"] = reason.into();
                return with_body(&request, &status);
            }
            (Some(bug @ (Bug::RerunsAlways | Bug::OutdatedStarts)), Role::VirtController | Role::StandbyVirt)
                if request.path.contains("/virtualmachines/") && request.path.ends_with("/status") =>
            {
                let name = request.path.rsplit('/').nth(1).unwrap_or_default();
                let mut vms = self.observer.all("vm").filter(|vm| text(vm, "/metadata/name") == name);
                let starts = |vm: &Value| match bug {
                    Bug::RerunsAlways => self.reruns.has_shut_down(vm),
                    _ => self.fickle.is_off(vm),
                };
                if vms.any(starts) {
                    let mut status = body(&request);
                    status["status"]["stateChangeRequests"] = json!([{"action": "Start"}]);
                    return with_body(&request, &status);
                }
            }
            (Some(Bug::Echo), Role::Controllers)
                if !self.echoes && request.method != Method::Get && !request.path.contains("/leases") =>
            {
                self.echoes = true;
                self.queue.after(AGAIN, Happening::Planted(role, Box::new(request.clone())));
            }
            _ => {}
        }
        request
    }

    /// Whether a request is lost by which a planted bug shows.
    pub(super) fn loses(&mut self, role: Role, request: &ApiRequest) -> bool {
        // Pods are on their way for long then, and some come back and are due while others are.
        let is_of_a_flight = request.path.ends_with("/binding") || request.path.ends_with("/status");
        if self.options.hint() == Some(Bug::Restless) && role == Role::Scheduler && is_of_a_flight {
            return self.healed.is_none() && !self.servers_rng.one_in(6);
        }
        if self.options.hint() == Some(Bug::MistakenAnswers) && role == Role::Scheduler && asks_for_a_volume(request) {
            return self.healed.is_none() && self.servers_rng.one_in(2);
        }
        self.bug() == Some(Bug::UnreadIsAbsent)
            && matches!(role, Role::Kubelet(_))
            && request.path.contains("/configmaps?")
            && !self.servers_rng.one_in(4)
    }

    /// How late a request is by which a planted bug shows.
    pub(super) fn delays(&mut self, role: Role, request: &ApiRequest) -> Option<Duration> {
        let bug = self.options.hint().filter(|_| role == Role::Scheduler && self.healed.is_none())?;
        let tells = || request.path.ends_with("/status") && body(request)["status"]["nominatedNodeName"].is_string();
        let (least, most) = match bug {
            Bug::LateWords if tells() => crate::nominations::LATE,
            Bug::MistakenAnswers if tells() => crate::answers::TOLD,
            Bug::MistakenAnswers if asks_for_a_volume(request) => crate::answers::WRITTEN,
            _ => return None,
        };
        Some(between(&mut self.servers_rng, least, most))
    }

    /// When a request arrives that its sender has given up by then, by which a planted bug shows.
    pub(super) fn gives_up(&mut self, role: Role, request: &ApiRequest) -> Option<Duration> {
        let shows = self.options.hint() == Some(Bug::AdoptedUnasked) && self.healed.is_none();
        let is_of_machines = matches!(role, Role::VirtController | Role::StandbyVirt);
        if !shows || !is_of_machines || !crate::heritage::adopts(request) {
            return None;
        }
        let (least, most) = crate::heritage::LATE;
        Some(between(&mut self.servers_rng, least, most))
    }

    /// A request of nobody is sent in the name of a role.
    pub(super) fn planted(&mut self, role: Role, request: ApiRequest) {
        // No life of a process has this number, so that nobody is told.
        self.send(role, 0, Asked::Call(CallId(0)), request.clone());
        if self.bug() == Some(Bug::Echo) {
            self.queue.after(AGAIN, Happening::Planted(role, Box::new(request)));
        }
    }

    /// What a process does instead of these effects. `led`: it led before them.
    pub(super) fn twisted(&self, role: Role, led: bool, effects: &mut Vec<Effect<OwnOut>>) {
        let hosted = self.processes.get(&role).and_then(|p| p.hosted.as_ref());
        match self.bug() {
            Some(Bug::AskedTwice) => {
                *effects = std::mem::take(effects)
                    .into_iter()
                    .flat_map(|effect| {
                        let again = match &effect {
                            Effect::Own(OwnOut::Scheduler(ask)) if ask.verb == FILTER => {
                                Some(Effect::Own(OwnOut::Scheduler(ask.clone())))
                            }
                            _ => None,
                        };
                        std::iter::once(effect).chain(again)
                    })
                    .collect();
            }
            Some(Bug::BlankCopies) => {
                for effect in effects.iter_mut() {
                    if let Effect::Own(OwnOut::Storage(out)) = effect {
                        crate::backups::without_origin(out);
                    }
                }
            }
            Some(Bug::PanicsAtWork) if role == Role::Scheduler && !effects.is_empty() => super::panics::planted(),
            Some(Bug::LeaseIsLife) if led && !hosted.is_some_and(Hosted::leads) => {
                effects.push(Effect::Exit("leader election lost".to_owned()));
            }
            _ => {}
        }
    }

    /// What a process hears instead of an item of a watch.
    pub(super) fn misheard(&self, role: Role, item: WatchItem) -> WatchItem {
        let is_scheduler = matches!(role, Role::Scheduler | Role::StandbyScheduler);
        match item {
            WatchItem::Event(line) if is_scheduler && self.bug() == Some(Bug::CordonsUnheard) => {
                WatchItem::Event(crate::cordons::unheard(&line))
            }
            item => item,
        }
    }

    /// A process starts anew.
    pub(super) fn starts_anew(&self, role: Role) {
        if self.bug() != Some(Bug::AmountsForgotten) || role != Role::VirtController {
            return;
        }
        for vm in self.observer.all("vm") {
            let key = format!("/registry/kubevirt.io/virtualmachines/{}", key_of(vm));
            let said = text(vm, "/spec/template/spec/domain/memory/guest");
            if !matches!(said, "" | FORGOTTEN) {
                let as_memory = |amount: &str| format!("\"guest\":\"{amount}\"");
                self.server.overwrite(&key, &as_memory(said), &as_memory(FORGOTTEN));
            }
        }
    }

    /// An API server that has not heard yet of what was made says that it is not there.
    pub(super) fn overlooked(&self, flight: &Flight, response: Box<Response>) -> Box<Response> {
        let reads = flight.role == Role::Reader && matches!(flight.asked, Asked::Call(_));
        if self.bug() != Some(Bug::NewIsAbsent) || !reads || response.status().as_u16() != 200 {
            return response;
        }
        let name = flight.label.rsplit('/').next().unwrap_or_default();
        Box::new(Response::from(Status::not_found("", "objects", name)))
    }

    /// Whether an API server leaves a line of a watch out.
    pub(super) fn leaves_out(&self, conn: ConnId, line: &[u8]) -> bool {
        match self.bug() {
            Some(Bug::LostEvent) => self.lines.is_multiple_of(LOST_ONE_IN),
            Some(Bug::BeginningsCut) => self.ledger.begins(conn, line),
            _ => false,
        }
    }

    /// The node that carries an operation of a node's kubelet out.
    pub(super) fn runtime_of(&self, node: u8, op: &Op) -> u8 {
        let crossed = self.bug() == Some(Bug::CrossedRuntimes) && matches!(op, Op::RunSandbox(_));
        let others = || self.nodes.keys().copied().filter(|other| *other != node);
        if crossed { others().next().unwrap_or(node) } else { node }
    }

    /// A binding arrives at an API server that does not look whether the pod has a node.
    pub(super) fn overwritten(&mut self, id: FlightId) {
        if self.bug() != Some(Bug::BindingsOverwrite) {
            return;
        }
        let Some((label, sent)) = self.server.travels(id).filter(|(label, _)| label.ends_with("/binding")) else {
            return;
        };
        let binding: Value = serde_json::from_slice(sent).unwrap_or_default();
        let to = text(&binding, "/target/name").to_owned();
        let name = label.split('/').rev().nth(1).unwrap_or_default();
        let Some(pod) = self.observer.all("pod").find(|pod| text(pod, "/metadata/name") == name) else { return };
        let from = text(pod, "/spec/nodeName").to_owned();
        let key = format!("/registry/pods/{}", key_of(pod));
        let same = text(pod, "/metadata/uid") == text(&binding, "/metadata/uid");
        if same && !from.is_empty() && from != to {
            self.server.overwrite(&key, &format!("\"nodeName\":\"{from}\""), &format!("\"nodeName\":\"{to}\""));
        }
    }

    /// Something was committed.
    pub(super) fn noticed(&mut self, changes: &[Change]) {
        if self.bug() == Some(Bug::ChargesLost) {
            for quota in changes.iter().filter(|change| change.resource == "quota").filter_map(|c| c.after.as_ref()) {
                let used = |pods: &str| format!("\"used\":{{\"pods\":\"{pods}\"}}");
                let pods = text(quota, "/status/used/pods");
                if !matches!(pods, "" | "0") {
                    self.server.overwrite(
                        &format!("/registry/resourcequotas/{}", key_of(quota)),
                        &used(pods),
                        &used("0"),
                    );
                }
            }
        }
        if self.bug() == Some(Bug::LimitsKept) {
            for change in changes {
                if let Some((from, to)) = crate::controllers::quota_edited(change) {
                    self.server.overwrite(&format!("/registry/resourcequotas/{}", key_of(change.object())), &from, &to);
                }
            }
        }
        if self.bug() == Some(Bug::PartsAhead) {
            for pod in changes.iter().filter(|change| change.resource == "pod").filter_map(|c| c.after.as_ref()) {
                let at = text(pod, "/spec/nodeName");
                if let Some(node) = self.nodes.values_mut().find(|node| node_name(node.number) == at) {
                    for disk in crate::given::disks_of(pod, &self.observer) {
                        node.disk.give(uid(pod), &disk);
                    }
                }
            }
        }
        if self.bug() != Some(Bug::GoingIsGone) {
            return;
        }
        let going = |change: &&Change| {
            let was = change.before.as_ref().is_some_and(deleting);
            change.resource == "pod" && !was && change.after.as_ref().is_some_and(deleting)
        };
        for change in changes.iter().filter(going) {
            let (namespace, name) =
                (text(change.object(), "/metadata/namespace"), text(change.object(), "/metadata/name"));
            let options = DeleteOptions { grace_period_s: Some(0), ..DeleteOptions::default() };
            let request = ApiRequest::delete(&Pod::resource(), namespace, name, &options);
            self.queue.after(AGAIN, Happening::Planted(Role::Controllers, Box::new(request)));
        }
    }
}
