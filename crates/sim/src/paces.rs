//! Guests that change what is told of them as often as they like: the port of an agent opens and closes many times a second.
//!
//! ```text
//!   guest: open, shut, open, shut, … ─▶ virt-handler: some writes at once ─▶ one every two seconds ─▶ everybody who watches
//! ```
//!
//! Counted is what a handler has heard to be made, in one life of it: what it does not know of it cannot pace.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use carrack_engine::{ApiRequest, CallId, Method, Time};
use serde_json::Value;

use crate::invariants::Breach;
use crate::observer::text;
use crate::role::Role;

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "statuses-are-paced";

/// So many writes there may be at once, and then one in so long.
const AT_ONCE: usize = 31;
const SHARE: Duration = Duration::from_secs(2);
/// How many writes are remembered: with more than these, it shows in the last ones.
const REMEMBERED: usize = 4 * AT_ONCE;

/// The writes of instances' statuses, by handler and UID.
#[derive(Debug, Default)]
pub(crate) struct Paces {
    /// Those that were not answered yet, with the UID.
    sent: BTreeMap<(Role, CallId), String>,
    made: BTreeMap<(Role, String), VecDeque<Time>>,
}

/// The UID of an instance of whose status something is told, by a request that neither changes its phase nor its metadata.
fn told(request: &ApiRequest) -> Option<String> {
    if request.method != Method::Patch || !request.path.contains("/virtualmachineinstances/") {
        return None;
    }
    let patch: Value = serde_json::from_slice(&request.body).ok()?;
    let rests_on = |name: &String| name == "uid" || name == "resourceVersion";
    let is_step = !patch["status"]["phase"].is_null()
        || !patch["metadata"].as_object().is_some_and(|metadata| metadata.keys().all(rests_on));
    (!is_step).then(|| text(&patch, "/metadata/uid").to_owned())
}

impl Paces {
    /// A role sends a request.
    pub(crate) fn sent(&mut self, role: Role, id: CallId, request: &ApiRequest) {
        if matches!(role, Role::VirtHandler(_))
            && let Some(uid) = told(request)
        {
            self.sent.insert((role, id), uid);
        }
    }

    /// A role hears whether a request was carried out.
    pub(crate) fn heard(&mut self, now: Time, role: Role, id: CallId, made: bool, breaches: &mut Vec<Breach>) {
        let Some(uid) = self.sent.remove(&(role, id)).filter(|_| made) else { return };
        let times = self.made.entry((role, uid.clone())).or_default();
        times.push_back(now);
        if times.len() > REMEMBERED {
            times.pop_front();
        }
        let count = times.len();
        let window = |(at, since): (usize, &Time)| {
            let (writes, length) = (count - at, now.since(*since));
            let advance = u32::try_from(writes.saturating_sub(AT_ONCE)).unwrap_or(u32::MAX);
            (SHARE.saturating_mul(advance) > length).then_some((writes, length))
        };
        if let Some((writes, length)) = times.iter().enumerate().find_map(window) {
            let what = format!("{role} has written the status of {uid} {writes} times in {} ms", length.as_millis());
            breaches.push(Breach::new(NAME, what));
        }
    }

    /// A role's process has ended, and what it knew with it.
    pub(crate) fn died(&mut self, role: Role) {
        self.sent.retain(|(of, _), _| *of != role);
        self.made.retain(|(of, _), _| *of != role);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const HANDLER: Role = Role::VirtHandler(1);

    fn request(metadata: Value, status: Value) -> ApiRequest {
        let body = json!({"metadata": metadata, "status": status});
        let path = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances/a";
        ApiRequest { body: body.to_string().into(), ..ApiRequest::new(Method::Patch, path) }
    }

    #[test]
    fn steps_are_told_apart() {
        let own = || json!({"uid": "u", "resourceVersion": "1"});
        for (metadata, status, expected) in [
            (own(), json!({"conditions": []}), Some("u")),
            (own(), json!({"phase": "Running"}), None),
            (json!({"uid": "u", "resourceVersion": "1", "finalizers": null}), json!({"conditions": []}), None),
        ] {
            assert_eq!(told(&request(metadata, status)).as_deref(), expected);
        }
        assert_eq!(told(&ApiRequest::new(Method::Get, "/virtualmachineinstances/a")), None);
    }

    /// `count` writes, one in so many milliseconds, the first ones at once.
    fn check(at_once: u64, later: u64, every_ms: u64, holds: bool) {
        let (mut paces, mut breaches, mut now) = (Paces::default(), Vec::new(), Time::from_unix_s(1_000_000));
        let asks = request(json!({"uid": "u", "resourceVersion": "1"}), json!({"conditions": []}));
        for n in 0..at_once + later {
            if n >= at_once {
                now = now + Duration::from_millis(every_ms);
            }
            paces.sent(HANDLER, CallId(n), &asks);
            paces.heard(now, HANDLER, CallId(n), true, &mut breaches);
        }
        assert_eq!(breaches.is_empty(), holds, "{at_once} at once, {later} in {every_ms} ms each: {breaches:?}");
    }

    #[test]
    fn more_than_some_at_once_is_found() {
        check(31, 0, 0, true);
        check(32, 0, 0, false);
        check(31, 200, 2000, true);
        check(31, 1, 1999, false);
        check(1, 29, 10, true);
        check(1, 200, 1000, false);
    }

    #[test]
    fn who_does_not_know_of_a_write_begins_anew() {
        let (mut paces, mut breaches, now) = (Paces::default(), Vec::new(), Time::from_unix_s(1_000_000));
        let asks = request(json!({"uid": "u", "resourceVersion": "1"}), json!({"conditions": []}));
        for n in 0..100 {
            paces.sent(HANDLER, CallId(n), &asks);
            paces.heard(now, HANDLER, CallId(n), n % 5 == 0, &mut breaches);
            if n == 50 {
                paces.died(HANDLER);
            }
        }
        assert!(breaches.is_empty(), "{breaches:?}");
    }
}
