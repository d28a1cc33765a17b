//! Whether the servers behind APIServices answer: their `Available` condition.

use std::sync::Arc;

use carrack_schema::table::find;
use carrack_store::{Check, Op, Txn};
use serde_json::{Value, json};

use super::{API_SERVICES, GROUP, Remote, remote};
use crate::admission::set_condition;
use crate::env::rfc3339_s;
use crate::locate;
use crate::object::{child_mut, str_at};
use crate::server::{ApiServer, Inner};
use crate::status::Status;
use crate::{convert, keys, stored};

impl ApiServer {
    /// Asks the servers behind APIServices for their resources, and notes in the objects whether they answer.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub async fn check_api_services(&self) -> Result<(), Status> {
        let server = &*self.inner;
        for remote in server.remotes().await?.values() {
            let (status, reason, message) = check(server, remote).await;
            note(server, remote, status, reason, &message).await?;
        }
        Ok(())
    }
}

async fn check(server: &Inner, remote: &Remote) -> (&'static str, &'static str, String) {
    let (namespace, name) = (&remote.namespace, &remote.service);
    if let Err(status) = locate::service(&*server.store, &*server.env, namespace, name, remote.port).await {
        let reason = if status.message.contains("not found") {
            "ServiceNotFound"
        } else if status.message.contains("no endpoints") {
            "MissingEndpoints"
        } else {
            "ServicePortError"
        };
        return ("False", reason, format!("service/{name} in \"{namespace}\" is not there: {}", status.message));
    }
    match remote::fetch(server, remote).await {
        Ok(_) => ("True", "Passed", "all checks passed".to_owned()),
        Err(why) => ("False", "FailedDiscoveryCheck", why),
    }
}

/// Whether two messages say the same. Addresses, ports and times change with each look, and say nothing; a number that stands
/// alone is a code.
fn say_the_same(one: &str, other: &str) -> bool {
    gist(one).eq(gist(other))
}

fn gist(message: &str) -> impl Iterator<Item = &str> {
    message.split_whitespace().filter(|word| {
        let digits = word.bytes().filter(u8::is_ascii_digit).count();
        digits == 0 || (digits == word.len() && digits <= 3)
    })
}

/// Writes the condition, if it is another one.
async fn note(server: &Inner, remote: &Remote, status: &str, reason: &str, message: &str) -> Result<(), Status> {
    let name = format!("{}.{}", remote.version, remote.group);
    let key = keys::of(GROUP, API_SERVICES, None) + &name;
    let (Some(entry), _) = server.store.get(&key).await? else { return Ok(()) };
    let mut object = stored::parse(&entry);
    let known = object.get("status").and_then(|status| status.pointer("/conditions/0")).cloned().unwrap_or_default();
    let is_said = known["message"].as_str().is_some_and(|known| say_the_same(known, message));
    if known["status"] == status && known["reason"] == reason && is_said {
        return Ok(());
    }
    tracing::info!(name, status, reason, message, "an aggregated API");
    let now = rfc3339_s(server.env.now());
    let slot = child_mut(&mut object, "status").entry("conditions").or_insert_with(|| json!([]));
    if let Value::Array(conditions) = slot {
        set_condition(conditions, "Available", status, reason, message, &now);
    }
    debug_assert!(!str_at(&object, &["metadata", "name"]).is_empty(), "it has been stored");
    let Some(row) = find(GROUP, API_SERVICES) else { return Ok(()) };
    let (api_version, kind) = convert::storage_type(row);
    let checks = vec![Check::Unchanged(Arc::clone(&entry.key), entry.mod_revision)];
    let ops = vec![Op::Put(Arc::clone(&entry.key), stored::encode(&object, &api_version, &kind))];
    // When somebody else was faster, the next round looks again.
    server.store.transact(Txn { checks, ops }).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use carrack_store::MemStore;
    use futures::FutureExt as _;
    use http::Method;

    use super::*;
    use crate::env::tests::Still;
    use crate::server::Config;

    #[test]
    fn what_is_new_in_a_message_is_written_and_what_is_always_new_is_not() {
        let server = ApiServer::new(Config::new(Arc::new(MemStore::default()), Arc::new(Still)));
        let asked = |method: Method, path: &str, object: Option<&Value>| {
            let answered = server.call(method, path, object).now_or_never();
            answered.expect("it waits for nothing").expect("it is done")
        };
        let all = "/apis/apiregistration.k8s.io/v1/apiservices";
        let spec = json!({"group": "g.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "service": {"name": "meter", "namespace": "default"}});
        asked(Method::POST, all, Some(&json!({"metadata": {"name": "v1.g.example.com"}, "spec": spec})));
        let remotes = server.inner.remotes().now_or_never().expect("it waits for nothing").expect("they are known");
        let remote = remotes.values().next().expect("it is there");
        for (message, is_new) in [
            ("dial tcp 10.0.0.1:443: connect: connection refused", true),
            ("dial tcp 10.0.0.2:443: connect: connection refused", false),
            ("dial tcp 10.0.0.2:443: connect: no route to host", true),
            ("tls: certificate expired: verification time 1800000000 (UNIX)", true),
            ("tls: certificate expired: verification time 1800000010 (UNIX)", false),
            ("bad status from https://meter.default.svc:443/apis: 503", true),
            ("bad status from https://meter.default.svc:443/apis: 500", true),
            ("bad status from https://meter.default.svc:443/apis: 500", false),
        ] {
            let before = server.inner.store.revision();
            let noted = note(&server.inner, remote, "False", "FailedDiscoveryCheck", message).now_or_never();
            noted.expect("it waits for nothing").expect("it is noted");
            assert_eq!(server.inner.store.revision() > before, is_new, "{message}");
            let object = asked(Method::GET, &format!("{all}/v1.g.example.com"), None);
            let condition = &object["status"]["conditions"][0];
            assert_eq!(condition["reason"], "FailedDiscoveryCheck", "{object}");
            assert!(!is_new || condition["message"] == message, "{object}");
        }
    }
}
