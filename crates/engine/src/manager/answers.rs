//! What becomes of writes: what a reply says, what follows from it, and for what the key then waits.
//!
//! ```text
//!   sent ──made──▶ barrier, next write
//!     │  refused ──▶ the controller may say so ──▶ backoff
//!     │  its name is taken ──▶ whose is it? ──ours──▶ as if made
//!     └─ nobody knows ──▶ doubt ──▶ backoff
//! ```

use carrack_types::resource::{Object as _, PartialObject};
use serde_json::Value;

use super::{Barrier, CallKind, Manager};
use crate::informer::digest_of_list;
use crate::{
    Absent, ApiError, ApiRequest, ApiResponse, Effects, Key, NAMESPACE_TERMINATING, Never, Plan, Refusal, Selector,
    StatusError, Time, View, Write,
};

impl Manager {
    /// What a run waited for has come.
    pub(super) fn answered(
        &mut self,
        now: Time,
        (i, key, kind): (usize, Key, CallKind),
        result: Result<ApiResponse, ApiError>,
        fx: &mut Effects<Never>,
    ) {
        let Some(write) = self.hosted[i].runs.get(&key).and_then(|run| run.writes.front()).cloned() else { return };
        if let (Write::Confirm { absent, .. }, CallKind::Write) = (&write, kind) {
            match confirmed(absent, &result) {
                Ok(true) => self.next_write_after(now, i, &key, fx),
                Ok(false) if matches!(absent, Absent::Refusal { .. }) => {
                    self.refused(now, i, &key, &write, &refusal(absent), fx);
                }
                Ok(false) => {
                    tracing::debug!(%key, absent = ?absent, "it is not as it should be after all; will look again");
                    self.wait_for_what_was_read(i, &key, &write, &result);
                    self.hurry_all(self.sources_of(i, &write).iter(), fx);
                    self.fail(now, i, &key);
                }
                Err(error) => {
                    tracing::warn!(%key, absent = ?absent, %error, "a live read failed; will try again");
                    self.fail(now, i, &key);
                }
            }
            return;
        }
        match (kind, result) {
            (CallKind::Write, Ok(reply)) => self.wrote(now, i, &key, &write, Some(&reply), fx),
            (CallKind::Write, Err(error)) if error.is_already_exists() && matches!(write, Write::Create { .. }) => {
                let target = write.key();
                let id = fx.api(ApiRequest::get(write.resource(), &target.namespace, &target.name));
                self.note_call(id, i, &key, CallKind::CheckChild);
            }
            (CallKind::Write, Err(error)) if error.is_not_found() && matches!(write, Write::Delete { .. }) => {
                self.wrote(now, i, &key, &write, None, fx);
            }
            (CallKind::CheckChild, Ok(reply)) => {
                if is_ours(&write, &reply) {
                    self.wrote(now, i, &key, &write, Some(&reply), fx);
                } else {
                    let controller = self.hosted[i].controller.name();
                    tracing::warn!(controller, %key, child = %write.key(), kind = %write.resource(),
                        "a child's name is taken by an object that belongs to somebody else");
                    let message = format!(
                        "{} \"{}\" already exists, and belongs to somebody else",
                        write.resource().qualified(),
                        write.key().name
                    );
                    let taken =
                        StatusError { code: 409, reason: "AlreadyExists".into(), message, ..StatusError::default() };
                    self.refused(now, i, &key, &write, &taken, fx);
                }
            }
            (CallKind::Write | CallKind::CheckChild, Err(error)) => {
                let controller = self.hosted[i].controller.name();
                if error.is_conflict() {
                    tracing::debug!(controller, %key, %error, "a write rested on something older; will look again");
                } else {
                    tracing::warn!(controller, %key, target = %write.key(), kind = %write.resource(), %error, "a write failed; will try again");
                }
                // Of several objects, some may be done when a webhook fails for the next.
                let is_of_several = matches!(write, Write::DeleteAll { .. } | Write::Post { .. });
                let unknown = if is_of_several { error.is_unknown() } else { error.may_have_acted() };
                if unknown && kind == CallKind::Write {
                    self.doubt(i, &key, &write, fx);
                }
                match &error {
                    ApiError::Status(status) if self.is_of_the_object(status) && self.stands_apart(i, &key) => {
                        drop(self.said(now, i, &key, &Refusal { write: &write, error: status }, fx));
                        self.leave_out(now, i, &key, fx);
                    }
                    ApiError::Status(status)
                        if matches!(write, Write::Call { .. }) || !unknown && !error.is_conflict() =>
                    {
                        self.refused(now, i, &key, &write, status, fx);
                    }
                    _ => self.fail(now, i, &key),
                }
            }
        }
    }

    /// A write is done: note what the caches must show, and go on.
    fn wrote(
        &mut self,
        now: Time,
        i: usize,
        key: &Key,
        write: &Write,
        reply: Option<&ApiResponse>,
        fx: &mut Effects<Never>,
    ) {
        let object: Option<PartialObject> = reply.and_then(|r| r.json().ok());
        let mut barriers = Vec::new();
        for source in self.sources_of(i, write) {
            match (&object, write) {
                (Some(o), _) if o.revision() > 0 && !selects(&source.selector, o) => {}
                (Some(o), _) if o.revision() > 0 => barriers.push(Barrier::AtLeast(source, o.revision())),
                (_, Write::Delete { key, options, .. }) => {
                    if let Some(uid) = &options.uid {
                        barriers.push(Barrier::Gone(source, key.clone(), uid.clone()));
                    }
                }
                _ => {}
            }
        }
        // What is not watched tells of the write when it is listed.
        self.hurry_all(barriers.iter().map(Barrier::source), fx);
        if let Some(run) = self.hosted[i].runs.get_mut(key) {
            run.barriers.extend(barriers);
        }
        self.next_write_after(now, i, key, fx);
    }

    /// The first write is done: tell what waited for it, and go on.
    fn next_write_after(&mut self, now: Time, i: usize, key: &Key, fx: &mut Effects<Never>) {
        let mut told = Vec::new();
        if let Some(run) = self.hosted[i].runs.get_mut(key) {
            run.writes.pop_front();
            run.done += 1;
            while run.told.front().is_some_and(|(after, _)| *after <= run.done) {
                told.extend(run.told.pop_front().map(|(_, event)| event));
            }
        }
        for event in told {
            self.tell(now, i, event, fx);
        }
        self.next_write(now, i, key, fx);
    }

    /// The server refused a write. The controller may say so, in the object's status and in events; then the run fails.
    fn refused(&mut self, now: Time, i: usize, key: &Key, write: &Write, error: &StatusError, fx: &mut Effects<Never>) {
        // Nothing can be made there any more, and what is there goes without being told of this.
        if error.has_cause(NAMESPACE_TERMINATING) {
            if let Some(run) = self.hosted[i].runs.get_mut(key) {
                run.told.clear();
                run.writes.clear();
            }
            return self.try_finish(now, i, key);
        }
        // What was to be said of a refusal is refused itself.
        if self.hosted[i].runs.get(key).is_none_or(|run| run.failed) {
            return self.fail(now, i, key);
        }
        let said = self.said(now, i, key, &Refusal { write, error }, fx);
        if let Some(run) = self.hosted[i].runs.get_mut(key) {
            run.failed = true;
            run.told.clear();
            run.done = 0;
            run.premises = said.premises;
            run.writes = said.writes.into();
        }
        self.next_write(now, i, key, fx);
    }

    /// What a controller says of a refusal; its events are told.
    fn said(&mut self, now: Time, i: usize, key: &Key, refusal: &Refusal<'_>, fx: &mut Effects<Never>) -> Plan {
        let view = View::of(&self.informers);
        let mut said = self.hosted[i].controller.refused(key, &view, refusal, now);
        for event in std::mem::take(&mut said.events) {
            self.tell(now, i, event, fx);
        }
        said
    }

    /// A live read has shown what a cache did not. Until the cache shows it too, the same would be decided and read again.
    fn wait_for_what_was_read(&mut self, i: usize, key: &Key, read: &Write, result: &Result<ApiResponse, ApiError>) {
        let revision =
            result.as_ref().ok().and_then(|reply| reply.object::<PartialObject>().ok()).map_or(0, |o| o.revision());
        let namespace = read.key().namespace;
        let sources = self.sources_of(i, read).into_iter().filter(|source| source.selector.is_all_of(&namespace));
        let barriers: Vec<Barrier> = sources.map(|source| Barrier::AtLeast(source, revision)).collect();
        if let Some(run) = self.hosted[i].runs.get_mut(key) {
            run.barriers.extend(barriers);
        }
    }
}

/// Whether a live read shows that something is not there.
fn confirmed(absent: &Absent, result: &Result<ApiResponse, ApiError>) -> Result<bool, ApiError> {
    match (absent, result) {
        (Absent::Object { .. } | Absent::Child { .. }, Err(error)) if error.is_not_found() => Ok(true),
        (Absent::End { .. }, Err(error)) if error.is_not_found() => Ok(false),
        // The kind itself is gone, and all its objects with it.
        (Absent::AnyIn(_) | Absent::Newer { .. }, Err(error)) if error.is_not_found() => Ok(true),
        (_, Err(error)) => Err(error.clone()),
        (Absent::Object { uid, .. }, Ok(reply)) => Ok(!uid.is_empty() && reply.object::<PartialObject>()?.uid() != uid),
        (Absent::Child { owner, .. }, Ok(reply)) => {
            Ok(reply.object::<PartialObject>()?.controller_uid() != Some(owner))
        }
        (Absent::End { uid, .. }, Ok(reply)) => {
            let found = reply.object::<PartialObject>()?;
            Ok(found.uid() == uid && !found.is_deleting())
        }
        (Absent::Newer { resource_version, .. }, Ok(reply)) => {
            Ok(reply.object::<PartialObject>()?.metadata.resource_version.as_deref() == Some(resource_version))
        }
        (Absent::Change { digest }, Ok(reply)) => Ok(digest_of_list(reply) == Some(*digest)),
        (Absent::Refusal { .. }, Ok(reply)) => Ok(reply.json::<Value>()?["status"]["allowed"] == true),
        (Absent::AnyIn(_), Ok(reply)) => {
            let list: Value = reply.json()?;
            // Null is what some servers make of an empty list.
            match list.get("items") {
                Some(Value::Null) => Ok(true),
                Some(Value::Array(items)) => Ok(items.is_empty()),
                _ => Err(ApiError::Decode("a list without items".into())),
            }
        }
    }
}

/// That somebody may not do what a review asks for, in the server's words for a request of his own.
fn refusal(absent: &Absent) -> StatusError {
    let Absent::Refusal { review } = absent else { return StatusError::default() };
    let user = &review["spec"]["user"];
    let text = |field: &str| review["spec"]["resourceAttributes"][field].as_str().unwrap_or_default();
    let slash = if text("subresource").is_empty() { "" } else { "/" };
    let resource = format!("{}{slash}{}", text("resource"), text("subresource"));
    let message = format!(
        "User {user} cannot {} resource \"{resource}\" in API group \"{}\" in the namespace \"{}\"",
        text("verb"),
        text("group"),
        text("namespace")
    );
    StatusError { code: 403, reason: "Forbidden".into(), message, ..StatusError::default() }
}

/// Whether an object found under a child's name is that child: its controlling owner is the one that
/// the child would have. A child without an owner is known by its name alone.
fn is_ours(write: &Write, found: &ApiResponse) -> bool {
    let Write::Create { object, .. } = write else { return false };
    let Ok(found) = found.object::<PartialObject>() else { return false };
    let wanted = object["metadata"]["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|o| o["controller"] == Value::Bool(true))
        .and_then(|o| o["uid"].as_str());
    !found.is_deleting() && wanted.is_none_or(|uid| found.controller_uid() == Some(uid))
}

/// Whether a cache with this selector shows the object. When in doubt it does not, and nobody waits.
fn selects(selector: &Selector, object: &PartialObject) -> bool {
    selector.fields.is_empty()
        && (selector.namespace.is_empty() || selector.namespace == object.namespace())
        && selector
            .labels
            .split(',')
            .filter(|p| !p.is_empty())
            .all(|pair| pair.split_once('=').is_some_and(|(k, v)| object.label(k) == Some(v.trim_start_matches('='))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is done for somebody waits for the server's word that he may do it.
    #[test]
    fn what_somebody_may_do_is_asked() {
        let attributes = json!({"verb": "create", "group": "x.io", "resource": "things", "subresource": "source",
            "namespace": "n", "name": "t"});
        let plan = Plan::none().confirm_allowed(&json!({"user": "u", "resourceAttributes": attributes}));
        let request = plan.writes[0].request();
        assert_eq!(request.path, "/apis/authorization.k8s.io/v1/subjectaccessreviews");
        assert!(plan.writes[0].is_pinned());
        let Write::Confirm { absent, .. } = &plan.writes[0] else { panic!("{plan:?}") };
        let says = |body: Value| confirmed(absent, &Ok(ApiResponse { status: 201, body: body.to_string().into() }));
        assert_eq!(says(json!({"status": {"allowed": true}})), Ok(true));
        assert_eq!(says(json!({"status": {"allowed": false, "reason": "no"}})), Ok(false));
        assert_eq!(says(json!({})), Ok(false));
        assert!(confirmed(absent, &Err(ApiError::Transport("lost".into()))).is_err());
        let words = "User \"u\" cannot create resource \"things/source\" in API group \"x.io\" in the namespace \"n\"";
        assert_eq!((refusal(absent).code, refusal(absent).message), (403, words.to_owned()));
    }
}
