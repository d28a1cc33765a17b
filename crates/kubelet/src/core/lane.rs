//! The start of one container, step by step.
//!
//! ```text
//!  image ─▶ (write down, wait for others, pull, write down)
//!     ─▶ devices: intend, write down, allocate, write down, pre-start
//!     ─▶ (CPUs) ─▶ (files with variables) ─▶ create ─▶ start ─▶ (postStart)
//! ```
//!
//! A failure ends the attempt with a reason to wait; the next look at the pod begins again. Nothing
//! is kept of a half-done start but what the runtime, the checkpoint and the plugins keep themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{EventRecord, Input, Time};
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements, Secret};

use super::sources::SourceView;
use super::sync::{round_of, with_facts};
use super::worker::{Lane, PodRuntime, Step, Worker};
use super::{Fx, KubeletCore, Owner, PodOp, show};
use crate::allocation::carried;
use crate::devices::NextStep;
use crate::effects::{Counted, In, Op, OpError, OpId, Outcome, Reply, Tally};
use crate::planted::Planted;
use crate::pods::backoff::MAX;
use crate::pods::plan::{Kill, Start, newest};
use crate::probes::http_action;
use crate::runtime::{ContainerState, Uid};
use crate::spec::env_file::{self, EnvFiles};
use crate::spec::image_name::ImageName;
use crate::spec::pod::{self, ContainerKind};
use crate::spec::{container, env, pull};
use crate::volumes::{NotReady, PayloadSources};

/// How far the runtime's clock may be ahead and still be believed.
const CLOCKS_APART: Duration = Duration::from_secs(60);
/// What is said of a hook that fails before it is asked, as with upstream (`Run`, `pkg/kubelet/lifecycle`).
pub(super) const NOBODY_TO_ASK: &str = "it is no command, no sleep and no request to a port of the container";
/// Why a container does not start whose devices are not there.
pub(super) const WAITING_FOR_DEVICE: &str = "WaitingForDevice";
/// How long a container with a bad configuration waits for a better one.
const CONFIG_RETRY: Duration = Duration::from_secs(5);

impl KubeletCore {
    /// Begins to start a container, unless it has to wait. False where that is for what it is made of, which is being read, or for
    /// a device.
    pub(super) fn begin_lane(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        runtime: &PodRuntime,
        start: Start,
        fx: &mut Fx,
    ) -> bool {
        let name = start.name.clone();
        if w.lanes.contains_key(&name) {
            return true;
        }
        if let Some(at) = w.retry_at.get(&name).filter(|at| **at > now) {
            self.wake_pod(*at, uid);
            return true;
        }
        let records: Vec<_> = runtime.containers.iter().collect();
        let last = newest(&records, &name);
        let ended = last.and_then(|r| match &r.state {
            // By the runtime's clock, which may have been set since this process began: then it is waited since the last try.
            ContainerState::Exited { finished_at, .. } if *finished_at > now + CLOCKS_APART => {
                w.crash.last_tried(&name)
            }
            ContainerState::Exited { finished_at, .. } => Some(*finished_at),
            _ => None,
        });
        if let Some(until) = ended.and_then(|at| w.crash.until(&name, at)).filter(|t| *t > now) {
            self.tell_crash_loop(now, w, &name, fx);
            self.wake_pod(until, uid);
            return true;
        }
        let Some(c) = pod::container(&w.pod.clone(), &name).map(|(_, c)| c.into_owned()) else { return true };
        let image = c.image.clone().unwrap_or_default();
        // What is no image's name is asked of nobody.
        if let Err(why) = ImageName::parse(&image) {
            let why = format!("couldn't parse image name {image:?}: {why}");
            let message = format!("Failed to apply default image tag {image:?}: {why}");
            self.image_error(now, uid, w, &name, ("InspectFailed", "InvalidImageName"), message, fx);
            return true;
        }
        // What its environment is made of is read first, so that a start does not stall half-way.
        match self.environment(now, uid, w, &c, None, fx) {
            None => return false,
            Some(Err(message)) => {
                self.config_error(now, uid, w, &name, "CreateContainerConfigError", &message, fx);
                return true;
            }
            Some(Ok(_)) => {}
        }
        let Some(secrets) = self.pull_auths(now, uid, w, fx) else { return false };
        let pod = w.pod.clone();
        if let Some((needs, reusable)) = self.device_needs(&pod, &name)
            && let NextStep::Wait { resource, why } = self.devices.peek_step(uid, &name, &needs, &reusable, None)
        {
            self.wait_for_device(now, w, &name, &resource, &why, fx);
            return false;
        }
        if let Some((at, error)) = w.pull_failed_at.get(&image).cloned()
            && let Some(until) = w.pulls.until(&image, at).filter(|t| *t > now)
        {
            let message = format!("Back-off pulling image \"{image}\"");
            if w.waiting.get(&name).is_none_or(|x| x.reason != "ImagePullBackOff") {
                self.container_event(now, w, &name, true, "BackOff", message.clone(), fx);
                self.container_event(now, w, &name, false, "Failed", "Error: ImagePullBackOff".into(), fx);
            }
            w.wait(&name, "ImagePullBackOff", format!("{message}: {error}"));
            self.wake_pod(until, uid);
            return true;
        }
        let (op, step, size) = (OpId(0), Step::FindImage, ResourceRequirements::default());
        let credentials = pull::credentials(&image, &secrets);
        let mut lane = Lane {
            start,
            op,
            step,
            reference: image.clone(),
            pulling_since: now,
            pull_began: now,
            image: None,
            credentials,
            preferred: None,
            files: None,
            cpus: None,
            size,
        };
        let goes_on = match w.found.get(&image).cloned() {
            Some(found) => self.image_found(now, w, &name, &c, Some(found), &mut lane, uid, fx),
            None => {
                lane.op = self.lane_op(uid, &name, Op::FindImage(image), fx);
                true
            }
        };
        if goes_on {
            w.lanes.insert(name, lane);
        }
        true
    }

    fn tell_crash_loop(&mut self, now: Time, w: &mut Worker, name: &str, fx: &mut Fx) {
        let delay = w.crash.delay(name).as_secs();
        let which = pod::pod_ref(&w.pod).described();
        if w.waiting.get(name).is_none_or(|x| x.reason != "CrashLoopBackOff") {
            let message = format!("Back-off restarting failed container {name} in pod {which}");
            self.container_event(now, w, name, false, "BackOff", message, fx);
        }
        let message = format!("back-off {delay}s restarting failed container={name} pod={which}");
        w.wait(name, "CrashLoopBackOff", message);
    }

    /// The environment; none while something of it is being read. Variables for services are all of them or none: whose were
    /// made before these were read once would lack some for as long as he runs (upstream's `makeEnvironmentVariables`).
    fn environment(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &Worker,
        c: &Container,
        files: Option<&EnvFiles>,
        fx: &mut Fx,
    ) -> Option<Result<Vec<(String, String)>, String>> {
        let has_links = pod::spec(&w.pod).enable_service_links != Some(false) || self.config.api_server.is_none();
        let needs_services = has_links && self.planted != Some(Planted::UnreadServices);
        if needs_services && !self.services.synced() && !pod::is_static(&w.pod) {
            return None;
        }
        let place = self.place(self.pod_ips(uid, w));
        let services = self.service_env(w);
        let view = SourceView::new(&self.sources, now, uid);
        let result = env::environment(&w.pod, c, &place, &services, &view, files);
        let (wanted, lacking) = view.finish();
        if let Some(at) = self.sources.want(now, uid, wanted, fx)
            && result.is_err()
        {
            self.wake_pod(at, uid);
        }
        if lacking { None } else { Some(result) }
    }

    /// Takes what is told of services; false for anything else. Once they were all read, containers may have waited for it.
    pub(super) fn services_seen(&mut self, now: Time, input: &Input<In>, fx: &mut Fx) -> bool {
        let known = self.services.synced();
        let is_of_services = self.services.step(now, input, fx).is_some();
        if !known && self.services.synced() {
            self.dirty.extend(self.workers.keys().cloned());
        }
        is_of_services
    }

    fn service_env(&self, w: &Worker) -> Vec<(String, String)> {
        let ns = w.pod.metadata.namespace.as_deref().unwrap_or_default();
        let cache = self.services.cache();
        let mut services = Vec::new();
        if pod::spec(&w.pod).enable_service_links != Some(false) {
            services.extend(cache.in_namespace(ns).cloned());
        }
        if let Some(k) = cache.get("default", "kubernetes")
            && (ns != "default" || services.is_empty())
        {
            services.push(k.clone());
        }
        let mut out = env::service_env(&services);
        if let Some((host, port)) = &self.config.api_server {
            out.retain(|(k, _)| !k.starts_with("KUBERNETES_"));
            let port = port.to_string();
            out.extend([
                ("KUBERNETES_SERVICE_HOST".to_owned(), host.clone()),
                ("KUBERNETES_SERVICE_PORT".to_owned(), port.clone()),
                ("KUBERNETES_SERVICE_PORT_HTTPS".to_owned(), port),
            ]);
        }
        out
    }

    /// Tells what a container waits for, each time that it is tried in vain, as upstream does: that it goes on is seen by the
    /// count that the recorder makes of events that say the same.
    #[expect(clippy::too_many_arguments, reason = "a reason, a message and where they go")]
    fn config_error(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        name: &str,
        reason: &str,
        message: &str,
        fx: &mut Fx,
    ) {
        self.container_event(now, w, name, false, "Failed", format!("Error: {message}"), fx);
        self.try_later(now, uid, w, name, reason, message);
    }

    /// The same of an image that cannot be had, for which no registry is asked: an event says why, and another one what for.
    #[expect(clippy::too_many_arguments, reason = "reasons, a message and where they go")]
    fn image_error(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        name: &str,
        (event, reason): (&str, &str),
        message: String,
        fx: &mut Fx,
    ) {
        self.container_event(now, w, name, false, event, message.clone(), fx);
        self.container_event(now, w, name, false, "Failed", format!("Error: {reason}"), fx);
        self.try_later(now, uid, w, name, reason, &message);
    }

    fn try_later(&mut self, now: Time, uid: &Uid, w: &mut Worker, name: &str, reason: &str, message: &str) {
        w.wait(name, reason, message);
        let at = now + CONFIG_RETRY;
        w.retry_at.insert(name.to_owned(), at);
        self.wake_pod(at, uid);
    }

    /// An operation of a lane ended.
    #[expect(clippy::too_many_arguments, reason = "an outcome and everything that it is for")]
    pub(super) fn lane_done(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        name: &str,
        id: OpId,
        outcome: Outcome,
        fx: &mut Fx,
    ) {
        let Some(mut lane) = w.lanes.remove(name) else { return };
        if lane.op != id {
            w.lanes.insert(name.to_owned(), lane);
            return;
        }
        let Some(c) = pod::container(&w.pod.clone(), name).map(|(_, c)| c.into_owned()) else { return };
        let image = c.image.clone().unwrap_or_default();
        let step = lane.step.clone();
        // Another image is to be used by now: this one is nobody's any more, and the next look begins again.
        if matches!(step, Step::FindImage | Step::PullImage) && lane.reference != image {
            return;
        }
        // Who waits for CPUs may have waited for this.
        self.given.due |= matches!(step, Step::Create | Step::Start { .. });
        let next = match (step, outcome) {
            (Step::FindImage, Ok(Reply::Image(found))) => self.image_found(now, w, name, &c, found, &mut lane, uid, fx),
            (Step::PullImage, Ok(Reply::Image(Some(found)) | Reply::Pulled { image: Some(found), .. })) => {
                w.pulls.clear(&image);
                w.pull_failed_at.remove(&image);
                let (took, waited) = (now.since(lane.pull_began), now.since(lane.pulling_since));
                show(Op::Count(Counted::ImagePull(found.size_bytes, waited)), fx);
                let text = pull::told(&image, (took, waited), found.size_bytes);
                self.container_event(now, w, name, true, "Pulled", text, fx);
                lane.image = Some(found);
                lane.step = Step::NotePull;
                self.use_pulled(now, uid, w, name, &mut lane, fx)
            }
            (Step::FindImage | Step::PullImage, Ok(_)) => {
                self.image_failed(now, uid, w, name, &image, "ErrImagePull", "the image was not found", fx);
                false
            }
            (Step::FindImage, Err(e)) => {
                let message = format!("Failed to inspect image \"{image}\": {e}");
                self.image_error(now, uid, w, name, ("InspectFailed", "ImageInspectError"), message, fx);
                false
            }
            (Step::PullImage, Err(e)) => {
                let message = format!("Failed to pull image \"{image}\": {e}");
                self.container_event(now, w, name, false, "Failed", message, fx);
                self.image_failed(now, uid, w, name, &image, "ErrImagePull", &e.to_string(), fx);
                false
            }
            (Step::Prefer { resource }, outcome) => {
                // Advice: without it the choice is the kubelet's own.
                let ids = match outcome {
                    Ok(Reply::Preferred(ids)) => ids,
                    _ => Vec::new(),
                };
                lane.preferred = Some((resource, ids));
                self.devices_step(now, uid, w, name, &mut lane, fx)
            }
            (Step::Allocate { resource, ids }, Ok(Reply::Allocated(reply))) => {
                if self.devices.allocated(uid, name, &resource, &ids, reply) {
                    lane.step = Step::Grant { version: self.checkpoint.touch() };
                    true
                } else {
                    false
                }
            }
            (Step::Allocate { resource, .. }, outcome) => {
                let error = outcome.err().map_or_else(|| "an answer of another kind".into(), |e| e.to_string());
                let message = format!("Allocate of {resource} failed: {error}");
                self.config_error(now, uid, w, name, "DeviceAllocationError", &message, fx);
                false
            }
            (Step::PreStart { rest }, outcome)
                if outcome.is_ok() || self.planted == Some(Planted::PreStartsIgnored) =>
            {
                lane.step = Step::PreStart { rest };
                self.next_pre_start(now, uid, w, name, &mut lane, fx)
            }
            (Step::PreStart { .. }, outcome) => {
                let error = outcome.err().map_or_else(|| "an answer of another kind".into(), |e| e.to_string());
                let message = format!("PreStartContainer of a device plugin failed: {error}");
                self.config_error(now, uid, w, name, "PreStartContainerError", &message, fx);
                false
            }
            (Step::ReadEnv, Ok(Reply::EnvFiles(files))) => {
                lane.files = Some(files);
                self.create(now, uid, w, name, &mut lane, fx)
            }
            (Step::ReadEnv, outcome) => {
                let error = outcome.err().map_or_else(|| "an answer of another kind".into(), |e| e.to_string());
                self.config_error(now, uid, w, name, "CreateContainerConfigError", &error, fx);
                false
            }
            // The pod began to stop while it was made: it never runs, and is removed with the pod.
            (Step::Create, Ok(Reply::Made(_))) if w.stopping.is_some() => {
                self.changed(w, fx);
                false
            }
            (Step::Create, Ok(Reply::Made(container))) => {
                self.given_cpus(&container, lane.cpus.clone());
                self.size_given(uid, &w.pod, name, &container, &lane.size);
                self.container_event(now, w, name, true, "Created", "Container created".to_owned(), fx);
                if lane.start.attempt > 0 {
                    w.crash.tried(name, now, self.config.restart_wait);
                }
                let kind = match pod::container(&w.pod, name).map(|(kind, _)| kind) {
                    Some(ContainerKind::Init | ContainerKind::Sidecar) => "init_container",
                    Some(ContainerKind::Ephemeral) => "ephemeral_container",
                    _ => "container",
                };
                show(Op::Count(Counted::Tally(Tally::Started, kind.to_owned())), fx);
                lane.op = self.lane_op(uid, name, Op::StartContainer(container.clone()), fx);
                lane.step = Step::Start { id: container };
                true
            }
            (Step::Create, Err(OpError::Config(message))) => {
                self.config_error(now, uid, w, name, "CreateContainerConfigError", &message, fx);
                false
            }
            (Step::Create, outcome) => {
                let error = outcome.err().map_or_else(|| "no id".into(), |e| e.to_string());
                self.config_error(now, uid, w, name, "CreateContainerError", &error, fx);
                self.changed(w, fx);
                false
            }
            (Step::Start { id }, Ok(reply)) => {
                self.container_event(now, w, name, true, "Started", "Container started".to_owned(), fx);
                w.waiting.remove(name);
                match reply {
                    Reply::Started(record) => self.changed_to(now, uid, w, fx, |runtime| {
                        runtime.containers.retain(|c| c.id != record.id);
                        runtime.containers.push(*record);
                    }),
                    _ => self.changed(w, fx),
                }
                self.post_start(now, uid, w, name, &c, &id, &mut lane, fx)
            }
            (Step::Start { .. }, Err(e)) => {
                self.config_error(now, uid, w, name, "RunContainerError", &e.to_string(), fx);
                self.changed(w, fx);
                false
            }
            (Step::PostStart { id }, outcome) => {
                self.tell_plain_hook(now, w, &outcome, fx);
                let failure = match outcome {
                    Ok(Reply::Exited { code, output }) if code != 0 => Some(format!("exited with {code}: {output}")),
                    Ok(_) => None,
                    Err(e) => Some(e.to_string()),
                };
                if let Some(error) = failure {
                    self.post_start_failed(now, uid, w, (name, id), &error, fx);
                }
                false
            }
            (
                Step::MeanPull { .. }
                | Step::NotePull
                | Step::Intend { .. }
                | Step::Grant { .. }
                | Step::Cpus
                | Step::PostStartSleep { .. },
                _,
            ) => true,
        };
        if next {
            w.lanes.insert(name.to_owned(), lane);
        }
    }

    /// The secrets that the pod gives for pulling; none while they are being read. One that cannot be had is told,
    /// and done without.
    fn pull_auths(&mut self, now: Time, uid: &Uid, w: &mut Worker, fx: &mut Fx) -> Option<Vec<Arc<Secret>>> {
        let pod = w.pod.clone();
        let names = pod::spec(&pod).image_pull_secrets.iter().flatten().map(|r| r.name.as_str());
        let view = SourceView::new(&self.sources, now, uid);
        let (mut found, mut missing, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        // The API server takes a list with the same name many times in it, and to read a secret takes time.
        for name in names.filter(|n| !n.is_empty() && seen.insert(*n)) {
            match PayloadSources::secret(&view, pod.metadata.namespace.as_deref().unwrap_or_default(), name) {
                Ok(Some(secret)) => found.push(secret),
                Ok(None) | Err(NotReady::Failed(_)) => missing.push(name),
                Err(NotReady::Pending) => {}
            }
        }
        let (wanted, lacking) = view.finish();
        self.sources.want(now, uid, wanted, fx);
        if lacking {
            return None;
        }
        if !missing.is_empty() && now >= w.secrets_said_at {
            w.secrets_said_at = now + Duration::from_secs(60);
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            );
            self.event(now, EventRecord::warning(pod.as_ref(), "FailedToRetrieveImagePullSecret", message), fx);
        }
        Some(found)
    }

    pub(super) fn lane_op(&mut self, uid: &Uid, name: &str, op: Op, fx: &mut Fx) -> OpId {
        self.op(Owner::Pod(uid.clone(), PodOp::Lane(name.to_owned())), op, fx)
    }

    #[expect(clippy::too_many_arguments, reason = "an image and everything that it is for")]
    fn image_found(
        &mut self,
        now: Time,
        w: &mut Worker,
        name: &str,
        c: &Container,
        found: Option<crate::runtime::ImageRecord>,
        lane: &mut Lane,
        uid: &Uid,
        fx: &mut Fx,
    ) -> bool {
        let image = c.image.clone().unwrap_or_default();
        let policy = c.image_pull_policy.as_deref().unwrap_or("IfNotPresent");
        let before = found.as_ref().map(|found| found.id.clone());
        // One that the pod may not use is as good as not there: that it is, is not told.
        let found = found.filter(|found| {
            policy == "Always" || self.may_use(now, &image, found, &lane.credentials) || self.has_used(uid, found)
        });
        match (found, policy) {
            (Some(found), "Never" | "IfNotPresent") => {
                w.pull_failed_at.remove(&image);
                let message =
                    format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
                self.container_event(now, w, name, true, "Pulled", message, fx);
                lane.image = Some(found);
                self.devices_step(now, uid, w, name, lane, fx)
            }
            (None, "Never") => {
                let message = format!("Container image \"{image}\" is not present with pull policy of Never");
                self.image_error(now, uid, w, name, ("ErrImageNeverPull", "ErrImageNeverPull"), message, fx);
                false
            }
            _ => {
                self.container_event(now, w, name, true, "Pulling", format!("Pulling image \"{image}\""), fx);
                lane.pulling_since = now;
                self.pulls.mean(&image, before.as_deref());
                lane.step = Step::MeanPull { image };
                true
            }
        }
    }

    /// Goes on with an image that was pulled, once it is on disk with what: then whoever may use it may do so in a later life
    /// of the kubelet, too. True while the lane lives.
    fn use_pulled(&mut self, now: Time, uid: &Uid, w: &mut Worker, name: &str, lane: &mut Lane, fx: &mut Fx) -> bool {
        let is_noted = lane.image.as_ref().is_none_or(|image| self.pulls.is_noted(&image.id));
        !is_noted || self.devices_step(now, uid, w, name, lane, fx)
    }

    #[expect(clippy::too_many_arguments, reason = "a failure and everything that it is for")]
    fn image_failed(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        name: &str,
        image: &str,
        reason: &str,
        error: &str,
        fx: &mut Fx,
    ) {
        w.pulls.tried(image, now, MAX);
        w.pull_failed_at.insert(image.to_owned(), (now, format!("{reason}: {error}")));
        w.wait(name, reason, error);
        self.container_event(now, w, name, false, "Failed", format!("Error: {reason}"), fx);
        // Shown as ErrImagePull for a moment, then as ImagePullBackOff.
        let at = now + Duration::from_secs(1);
        w.retry_at.insert(name.to_owned(), at);
        self.wake_pod(at, uid);
    }

    /// Goes on towards the container's devices; true while the lane lives.
    fn devices_step(&mut self, now: Time, uid: &Uid, w: &mut Worker, name: &str, lane: &mut Lane, fx: &mut Fx) -> bool {
        let pod = w.pod.clone();
        let Some((needs, reusable)) = self.device_needs(&pod, name) else { return false };
        let preferred = lane.preferred.as_ref().map(|(r, ids)| (r.as_str(), ids.as_slice()));
        match self.devices.next_step(uid, name, &needs, &reusable, preferred) {
            NextStep::Ready(list) => {
                lane.step = Step::PreStart { rest: list };
                self.next_pre_start(now, uid, w, name, lane, fx)
            }
            NextStep::Prefer { resource, epoch, available, required, count } => {
                let op = Op::Prefer { resource: resource.clone(), epoch, available, required, count };
                lane.op = self.lane_op(uid, name, op, fx);
                lane.step = Step::Prefer { resource };
                true
            }
            NextStep::Allocate { resource, epoch, ids } => {
                lane.step = Step::Intend { version: self.checkpoint.touch(), resource, epoch, ids };
                true
            }
            NextStep::Wait { resource, why } => {
                self.wait_for_device(now, w, name, &resource, &why, fx);
                false
            }
        }
    }

    /// News of the plugin or of a freed device wakes those who wait.
    fn wait_for_device(&mut self, now: Time, w: &mut Worker, name: &str, resource: &str, why: &str, fx: &mut Fx) {
        let message = format!("waiting for {resource}: {why}");
        if w.waiting.get(name).is_none_or(|x| x.message != message) {
            self.container_event(now, w, name, false, WAITING_FOR_DEVICE, message.clone(), fx);
        }
        w.wait(name, WAITING_FOR_DEVICE, message);
    }

    /// Devices that a container needs, and the containers whose devices it may take over.
    pub(super) fn device_needs<'a>(&self, pod: &'a Pod, name: &str) -> Option<(BTreeMap<String, usize>, Vec<&'a str>)> {
        let (kind, c) = pod::container(pod, name)?;
        let needs = pod::extended_resources(&c).into_iter().filter(|(r, _)| self.is_device(r)).collect();
        let reusable = match kind {
            ContainerKind::Init | ContainerKind::Regular => pod::init_containers(pod)
                .filter(|(k, i)| *k == ContainerKind::Init && i.name != name)
                .map(|(_, i)| i.name.as_str())
                .collect(),
            _ => Vec::new(),
        };
        Some((needs, reusable))
    }

    /// Whether a resource is a plugin's: ever advertised here, or not known to be somebody's plain
    /// amount in the Node's status.
    fn is_device(&self, resource: &str) -> bool {
        if self.devices.ever_advertised(resource) {
            return true;
        }
        let plain = self
            .node
            .seen
            .as_ref()
            .and_then(|n| n.status.as_ref()?.allocatable.as_ref()?.get(resource))
            .is_some_and(|q| crate::amount::units(q) > 0);
        !plain
    }

    /// Lanes that waited for the checkpoint go on.
    pub(super) fn advance_lanes(&mut self, now: Time, uid: &Uid, w: &mut Worker, fx: &mut Fx) {
        let saved = self.checkpoint.saved;
        let names: Vec<String> = w.lanes.keys().cloned().collect();
        for name in names {
            let Some(mut lane) = w.lanes.remove(&name) else { continue };
            let lives = match lane.step.clone() {
                Step::NotePull => self.use_pulled(now, uid, w, &name, &mut lane, fx),
                Step::Intend { version, resource, epoch, ids } if saved >= version => {
                    // While it was written down, which takes long on a full disk, the plugin may have said otherwise.
                    let stands = self.devices.may_be_asked_for(&resource, epoch, &ids);
                    if stands || self.planted == Some(Planted::IllDevicesGiven) {
                        let op = Op::Allocate { resource: resource.clone(), epoch, ids: ids.clone() };
                        lane.op = self.lane_op(uid, &name, op, fx);
                        lane.step = Step::Allocate { resource, ids };
                        true
                    } else {
                        self.devices_step(now, uid, w, &name, &mut lane, fx)
                    }
                }
                Step::PostStartSleep { until, .. } => {
                    if until > now {
                        self.wake_pod(until, uid);
                    }
                    until > now
                }
                Step::Grant { version } if saved >= version => self.devices_step(now, uid, w, &name, &mut lane, fx),
                Step::Cpus => self.create(now, uid, w, &name, &mut lane, fx),
                _ => true,
            };
            if lives {
                w.lanes.insert(name, lane);
            }
        }
    }

    fn next_pre_start(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        name: &str,
        lane: &mut Lane,
        fx: &mut Fx,
    ) -> bool {
        if let Step::PreStart { rest } = &mut lane.step
            && let Some(p) = rest.pop()
        {
            let op = Op::PreStart { resource: p.resource, epoch: p.epoch, ids: p.ids };
            lane.op = self.lane_op(uid, name, op, fx);
            return true;
        }
        self.create(now, uid, w, name, lane, fx)
    }

    fn create(&mut self, now: Time, uid: &Uid, w: &mut Worker, name: &str, lane: &mut Lane, fx: &mut Fx) -> bool {
        let pod = w.pod.clone();
        let Some((kind, c)) = pod::container(&pod, name) else { return false };
        let may_be_made = self.may_have_cpus(uid, w, name) && self.may_have_memory(uid, name);
        if !may_be_made || self.waits_for_group(now, uid, w) {
            lane.step = Step::Cpus;
            return true;
        }
        // It is not made of another image than it names: its hash would say that it is what it is to be. And it is not made for
        // a round that is over.
        let is_over = kind != ContainerKind::Ephemeral
            && self.planted != Some(Planted::RestartsAlone)
            && self.runtime.get(uid).is_some_and(|runtime| round_of(w, runtime) > lane.start.round);
        if is_over || c.image.as_deref().unwrap_or_default() != lane.reference {
            return false;
        }
        let (Some(image), Some(sandbox)) = (lane.image.clone(), w.sandbox_spec.clone()) else { return false };
        let Ok(volumes) = self.volumes.ready(&pod) else { return false };
        if lane.files.is_none() {
            match env_file::files(&pod, &c, &volumes) {
                Ok(files) if files.is_empty() => {}
                Ok(files) => {
                    lane.op = self.lane_op(uid, name, Op::ReadEnvFiles(files), fx);
                    lane.step = Step::ReadEnv;
                    return true;
                }
                Err(message) => {
                    self.config_error(now, uid, w, name, "CreateContainerConfigError", &message, fx);
                    return false;
                }
            }
        }
        let env = match self.environment(now, uid, w, &c, lane.files.as_ref(), fx) {
            Some(Ok(env)) => env,
            Some(Err(message)) => {
                self.config_error(now, uid, w, name, "CreateContainerConfigError", &message, fx);
                return false;
            }
            None => return false,
        };
        let runtime = self.runtime.get(uid).cloned().unwrap_or_default();
        let target = pod::ephemeral_containers(&pod)
            .into_iter()
            .find(|(e, _)| e.name == name)
            .and_then(|(_, t)| t)
            .and_then(|t| {
                let none = std::collections::BTreeMap::new();
                let ran = std::collections::BTreeMap::new();
                with_facts(w, &runtime, &none, &ran, |f| newest(f.containers, &t).map(|c| c.id.clone()))
            })
            .unwrap_or_default();
        let inputs = container::Inputs {
            config: &self.config,
            sandbox: &sandbox,
            sandbox_id: &lane.start.sandbox_id,
            attempt: lane.start.attempt,
            round: lane.start.round,
            image: &image,
            env,
            volumes: &volumes,
            grants: self.devices.granted(uid, name),
            pod_ips: &self.pod_ips(uid, w),
            node_memory_bytes: self.host.memory_bytes,
            target_id: target,
            cpus: self.cpus.of(uid, name),
            own_cpus: self.cpus.own(uid, name).is_some(),
            memory_nodes: self.numa.memory.nodes_of(uid, name),
            handler: self
                .runtime_info
                .as_ref()
                .and_then(|info| info.handlers.get(&sandbox.runtime_handler))
                .copied()
                .unwrap_or_default(),
        };
        lane.cpus.clone_from(&inputs.cpus);
        lane.size = carried(c.resources.as_ref());
        match container::container(&pod, kind, &c, inputs) {
            Ok(spec) => {
                lane.op = self.lane_op(uid, name, Op::CreateContainer(sandbox, Box::new(spec)), fx);
                lane.step = Step::Create;
                true
            }
            Err(message) => {
                self.config_error(now, uid, w, name, "CreateContainerConfigError", &message, fx);
                false
            }
        }
    }

    /// The postStart hook of a container, of this name and id, has failed: the container ends.
    fn post_start_failed(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        (name, id): (&str, String),
        error: &str,
        fx: &mut Fx,
    ) {
        // As of preStop hooks, what it says is for the log alone.
        tracing::warn!(pod = %pod::pod_ref(&w.pod), container = name, error, "a postStart hook failed");
        let message = "PostStartHook failed".to_owned();
        self.container_event(now, w, name, false, "FailedPostStartHook", message, fx);
        let message = "FailedPostStartHook".into();
        let kill = Kill { id, name: name.to_owned(), message, at_once: false };
        let deadline = now + pod::own_grace(&w.pod);
        self.kill(now, uid, w, &kill, deadline, fx);
    }

    #[expect(clippy::too_many_arguments, reason = "a hook and everything that it is for")]
    fn post_start(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        name: &str,
        c: &Container,
        id: &str,
        lane: &mut Lane,
        fx: &mut Fx,
    ) -> bool {
        let Some(hook) = c.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else { return false };
        let pod_ip = self.pod_ips(uid, w).into_iter().next().unwrap_or_default();
        let op = if let Some(e) = &hook.exec {
            Op::Exec { id: id.to_owned(), command: e.command.clone().unwrap_or_default(), timeout_s: 0 }
        } else if let Some(action) = hook.http_get.as_ref().and_then(|h| http_action(c, h, &pod_ip, true)) {
            Op::Net { action, timeout_s: 30 }
        } else if let Some(s) = &hook.sleep {
            let until = now + Duration::from_secs(u64::try_from(s.seconds).unwrap_or(0));
            lane.step = Step::PostStartSleep { id: id.to_owned(), until };
            self.wake_pod(until, uid);
            return true;
        } else {
            self.post_start_failed(now, uid, w, (name, id.to_owned()), NOBODY_TO_ASK, fx);
            return false;
        };
        lane.op = self.lane_op(uid, name, op, fx);
        lane.step = Step::PostStart { id: id.to_owned() };
        true
    }

    /// Tells an event about one container.
    #[expect(clippy::too_many_arguments, reason = "an event and where it goes")]
    pub(super) fn container_event(
        &mut self,
        now: Time,
        w: &Worker,
        name: &str,
        normal: bool,
        reason: &str,
        message: String,
        fx: &mut Fx,
    ) {
        let list = match pod::container(&w.pod, name).map(|(k, _)| k) {
            Some(ContainerKind::Init | ContainerKind::Sidecar) => "initContainers",
            Some(ContainerKind::Ephemeral) => "ephemeralContainers",
            _ => "containers",
        };
        let record = if normal {
            EventRecord::normal(w.pod.as_ref(), reason, message)
        } else {
            EventRecord::warning(w.pod.as_ref(), reason, message)
        };
        self.event(now, record.at_field(format!("spec.{list}{{{name}}}")), fx);
    }
}
