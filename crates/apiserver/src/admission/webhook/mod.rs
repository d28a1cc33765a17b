//! Admission webhooks: servers of users that change or refuse objects.
//!
//! Mutating ones are asked one after the other, in the order of their configurations' names; validating ones
//! side by side. Texts and status codes are upstream's
//! (`k8s.io/apiserver/pkg/admission/plugin/webhook/{mutating,validating,request,errors}`).

mod call;
mod patch;
mod review;
mod users;

use std::collections::BTreeMap;

use carrack_schema::validate::expressions;
use futures::future::join_all;
use serde_json::{Value, json};

use super::extend::{Asked, take};
use super::select::{Seen, Selection};
use super::world::{Condition, World, all_hold};
use super::{Attributes, Operation};
use crate::metrics::{Called, Step};
use crate::object::{Object, name};
use crate::status::Status;

pub(crate) use call::{Client, brief, post, review_version, type_of};
pub(crate) use users::{Users, WebhookUsers};

/// A webhook of a configuration.
#[derive(Clone, Debug)]
pub(crate) struct Webhook {
    name: String,
    client: Client,
    selection: Selection,
    conditions: Vec<Condition>,
    /// `failurePolicy: Ignore`
    ignores_failure: bool,
    /// Whether it may be called in a dry run.
    takes_dry_run: bool,
    /// Whether it wants to be asked again when others have changed the object after it.
    again: bool,
    timeout_ms: u64,
    /// Which version of reviews it is sent; none where it takes none that is spoken.
    review_version: Option<&'static str>,
}

impl Webhook {
    /// The webhooks of a configuration.
    pub(super) fn read_all(configuration: &Object) -> Vec<std::sync::Arc<Webhook>> {
        let of = name(configuration);
        let all = configuration.get("webhooks").and_then(Value::as_array).into_iter().flatten();
        all.map(|webhook| std::sync::Arc::new(Webhook::read(webhook, of))).collect()
    }

    fn read(webhook: &Value, configuration: &str) -> Webhook {
        let text = |key: &str| webhook[key].as_str().unwrap_or_default();
        let env = expressions::conditions_env();
        let timeout_s = webhook["timeoutSeconds"].as_u64().unwrap_or(10).clamp(1, 30);
        tracing::debug!(configuration, webhook = text("name"), "a webhook is asked from now on");
        Webhook {
            name: text("name").to_owned(),
            client: Client::read(&webhook["clientConfig"]),
            selection: Selection::of_webhook(webhook),
            conditions: super::policy::conditions(&webhook["matchConditions"], &env),
            ignores_failure: text("failurePolicy") == "Ignore",
            takes_dry_run: matches!(text("sideEffects"), "None" | "NoneOnDryRun"),
            again: text("reinvocationPolicy") == "IfNeeded",
            timeout_ms: timeout_s * 1000,
            review_version: review_version(&webhook["admissionReviewVersions"]),
        }
    }

    /// The review to send, with what the webhook sees the object as; none when it is not asked.
    async fn review<'a>(
        &self,
        asked: &Asked<'_>,
        attributes: &Attributes<'a>,
    ) -> Result<Option<(Seen<'a>, Value)>, Status> {
        let Some(seen) = self.selection.seen_as(attributes, asked.namespace.as_ref()) else { return Ok(None) };
        let (object, old) = asked.both(attributes, seen).await?;
        let mut request = asked.request(attributes, seen);
        if !self.conditions.is_empty() {
            let holds = {
                let world = World::new(attributes.caller, &request, &object, &old);
                let asks = self.conditions.iter().any(|c| c.program.as_ref().is_ok_and(|p| p.uses("authorizer")));
                if asks {
                    let hold = |authorizer: &carrack_auth::Authorizer| {
                        let mut world = World::new(attributes.caller, &request, &object, &old);
                        world.authorize_by(authorizer);
                        all_hold(&self.conditions, &world)
                    };
                    asked.cx.server.with_authorizer(hold).await?
                } else {
                    all_hold(&self.conditions, &world)
                }
            };
            match holds {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(why) if self.ignores_failure => {
                    tracing::warn!(webhook = self.name, %why, "a webhook's match conditions fail");
                    return Ok(None);
                }
                Err(why) => return Err(attributes.forbidden(&why)),
            }
        }
        if attributes.dry_run && !self.takes_dry_run {
            return Err(Status::bad_request(format!("admission webhook \"{}\" does not support dry run", self.name)));
        }
        request["object"] = object;
        request["oldObject"] = old;
        let api_version = format!("admission.k8s.io/{}", self.review_version.unwrap_or_default());
        let review = json!({"apiVersion": api_version, "kind": "AdmissionReview", "request": request});
        Ok(Some((seen, review)))
    }

    /// Asks the webhook. None when it could not be asked and that does not matter; the audit log is told so, under
    /// the kind of webhook, which is the step's, and its place among those that are asked.
    async fn ask(
        &self,
        asked: &Asked<'_>,
        review: &Value,
        (step, operation): (Step, Operation),
        place: &str,
    ) -> Result<Option<review::Verdict>, Status> {
        let since = asked.cx.server.env.now();
        let outcome = self.asked(asked, review, (step, place)).await;
        let called = match &outcome {
            Ok(Some(verdict)) if verdict.allowed => Called::Allowed,
            Ok(Some(verdict)) => Called::Denied(review::code(verdict)),
            Ok(None) => Called::Open,
            Err(status) => Called::Failed(status.code),
        };
        let took = asked.cx.server.env.now().duration_since(since);
        asked.cx.server.metrics.admission.webhook(&self.name, (step, operation), called, took);
        outcome
    }

    async fn asked(
        &self,
        asked: &Asked<'_>,
        review: &Value,
        (step, place): (Step, &str),
    ) -> Result<Option<review::Verdict>, Status> {
        let verdict = match self.review_version {
            None => Err("could not create admission objects: webhook does not accept known AdmissionReview versions \
                (v1, v1beta1)"
                .to_owned()),
            Some(version) => {
                let server = asked.cx.server;
                let users = Some(server.webhook_users.of(step));
                match post((&*server.store, &*server.env), &self.client, users, review, self.timeout_ms).await {
                    Ok(answer) => {
                        let uid = review["request"]["uid"].as_str().unwrap_or_default();
                        review::read(&answer, (version, uid), step)
                    }
                    Err(why) => Err(format!("failed to call webhook: {why}")),
                }
            }
        };
        match verdict {
            Ok(verdict) => {
                for warning in &verdict.warnings {
                    asked.cx.note(warning.clone());
                }
                for (key, value) in &verdict.annotations {
                    asked.cx.annotate(format!("{}/{key}", self.name), value);
                }
                Ok(Some(verdict))
            }
            Err(why) if self.ignores_failure => {
                tracing::warn!(webhook = self.name, %why, "a webhook could not be asked, and goes without");
                let kind = match step {
                    Step::Admit => "mutating",
                    Step::Validate => "validating",
                };
                asked.cx.annotate(format!("failed-open.{kind}.webhook.admission.k8s.io/{place}"), self.name.as_str());
                Ok(None)
            }
            Err(why) => {
                tracing::warn!(webhook = self.name, %why, "a webhook could not be asked");
                Err(Status::internal(format!("failed calling webhook \"{}\": {why}", self.name)))
            }
        }
    }
}

/// Asks the mutating webhooks. Returns what those saw last that want to be asked again; with that given,
/// asks only those of them for whom the object has changed since.
pub(super) async fn mutate(
    asked: &Asked<'_>,
    attributes: &mut Attributes<'_>,
    seen: Option<BTreeMap<(String, usize), Object>>,
) -> Result<BTreeMap<(String, usize), Object>, Status> {
    let mut now_seen = BTreeMap::new();
    let (round, mut ordinal) = (u8::from(seen.is_some()), 0);
    for (configuration, webhooks) in &asked.hooks.mutating {
        for (index, webhook) in webhooks.iter().enumerate() {
            let id = (configuration.clone(), index);
            if let Some(seen) = &seen
                && seen.get(&id).is_none_or(|object| *object == attributes.object)
            {
                continue;
            }
            let Some((seen_as, review)) = webhook.review(asked, attributes).await? else { continue };
            let place = format!("round_{round}_index_{ordinal}");
            ordinal += 1;
            let since = asked.cx.server.env.now();
            let verdict = webhook.ask(asked, &review, (Step::Admit, attributes.operation), &place).await;
            asked.cx.waited(since);
            if let Some(verdict) = verdict? {
                if !verdict.allowed {
                    return Err(review::denied(&webhook.name, &verdict));
                }
                let mutated = verdict.patch.is_some();
                let told = json!({"configuration": configuration, "webhook": webhook.name, "mutated": mutated});
                asked.cx.annotate(format!("mutation.webhook.admission.k8s.io/{place}"), told.to_string());
                if let Some(patch) = verdict.patch.as_deref().filter(|patch| !patch::is_empty(patch)) {
                    if attributes.operation == Operation::Delete {
                        return Err(Status::internal(format!(
                            "admission webhook \"{}\" attempted to modify the object, which is not supported for this operation",
                            webhook.name
                        )));
                    }
                    let changed = patch::apply(&review["request"]["object"], patch)
                        .map_err(|why| Status::internal(format!("admission webhook \"{}\": {why}", webhook.name)))?;
                    take(asked, attributes, seen_as, changed).await?;
                }
            }
            if webhook.again {
                now_seen.insert(id, attributes.object.clone());
            }
        }
    }
    Ok(now_seen)
}

/// Asks the validating webhooks, all at once. Of several refusals the first one by order is told.
pub(super) async fn validate(asked: &Asked<'_>, attributes: &Attributes<'_>) -> Result<(), Status> {
    let mut asking = Vec::new();
    for webhook in asked.hooks.validating.values().flatten() {
        if let Some((_, review)) = webhook.review(asked, attributes).await? {
            let place = format!("round_0_index_{}", asking.len());
            asking.push(async move {
                match webhook.ask(asked, &review, (Step::Validate, attributes.operation), &place).await? {
                    Some(verdict) if !verdict.allowed => Err(review::denied(&webhook.name, &verdict)),
                    _ => Ok(()),
                }
            });
        }
    }
    if asking.is_empty() {
        return Ok(());
    }
    let since = asked.cx.server.env.now();
    let verdicts = join_all(asking).await;
    asked.cx.waited(since);
    verdicts.into_iter().collect()
}
