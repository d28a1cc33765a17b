//! create.

use std::sync::Arc;

use carrack_schema::apply::Managed;
use carrack_store::{Check, Op, Revision, Txn, TxnOutcome};
use jiff::SignedDuration;

use crate::admission::{self, Asked, Attributes, Operation, Terms, extend, steps};
use crate::body::Response;
use crate::context::Cx;
use crate::convert;
use crate::env::Env;
use crate::keys;
use crate::kinds;
use crate::object::{Object, meta_str, set_meta};
use crate::present::Presenter;
use crate::registry::{decode, managers, meta, owners, strategy};
use crate::rests_on;
use crate::server::Inner;
use crate::status::Status;
use crate::stored;

/// How many generated names are tried.
const NAME_TRIES: usize = 8;
/// How often a write is tried against other writers before the client is told to come back. Upstream tries until the
/// request's time is up (`etcd3.store.GuaranteedUpdate`).
pub(crate) const TRIES: usize = 1000;
/// For how long it is tried: as long as a request over a socket may take. Those in the process have no end of their own,
/// and each try asks webhooks again.
const MAX_TIME: SignedDuration = SignedDuration::from_secs(60);

/// The tries of a write, counted from 0, until there have been too many or the time is up.
pub(crate) fn tries(env: &Arc<dyn Env>) -> impl Iterator<Item = usize> + Send + use<> {
    let (env, began) = (Arc::clone(env), env.now());
    (0..TRIES).take_while(move |round| *round == 0 || env.now().duration_since(began) <= MAX_TIME)
}

/// Creates the object in the body.
pub(crate) async fn create(cx: &mut Cx<'_>, body: &[u8]) -> Result<Response, Status> {
    let presenter = cx.presenter()?;
    let dry_run = cx.dry_run()?;
    let (warnings, mut names) = (cx.warnings.len(), NAME_TRIES);
    for _ in tries(&cx.server.env) {
        let mut object = decode::object(cx, body)?;
        prepare(cx, &mut object)?;
        let managers = managers::created(cx, &mut object);
        if let Some(made) = attempt(cx, object, managers.as_deref(), dry_run, &mut names).await? {
            return response(cx, made, &presenter).await;
        }
        cx.renew().await?;
        // Read once more: that happens less often than it would cost to keep a copy each time.
        cx.warnings.truncate(warnings);
    }
    Err(busy())
}

/// Creating by applying, or by replacing what is not there, needs the right to create.
pub(crate) async fn may_create(cx: &Cx<'_>, config: &Object) -> Result<(), Status> {
    if !meta_str(config, "uid").is_empty() {
        return Err(cx.conflict(
            cx.name(),
            &format!(
                "uid mismatch: the provided object specified uid {}, and no existing object was found",
                meta_str(config, "uid")
            ),
        ));
    }
    cx.may("create", "").await
}

/// The reply with a created object.
pub(crate) async fn response(cx: &Cx<'_>, made: Made, presenter: &Presenter) -> Result<Response, Status> {
    Ok(match made {
        Made::Stored(entry) => presenter.one(201, &cx.converted(entry).await?),
        Made::Dry(object) => presenter.unstored(201, &object, Revision(0)),
    })
}

/// A created object.
pub(crate) enum Made {
    Stored(Arc<carrack_store::Entry>),
    /// What would have been stored.
    Dry(Object),
}

/// Creates an object that was applied.
pub(crate) async fn make_applied(
    cx: &mut Cx<'_>,
    mut object: Object,
    managed: Managed,
    dry_run: bool,
) -> Result<Made, Status> {
    prepare(cx, &mut object)?;
    let (managers, mut names) = (managed.into_text(), NAME_TRIES);
    for _ in tries(&cx.server.env) {
        if let Some(made) = attempt(cx, object.clone(), managers.as_deref(), dry_run, &mut names).await? {
            return Ok(made);
        }
        cx.renew().await?;
        cx.fit(&mut object)?;
    }
    Err(busy())
}

fn prepare(cx: &Cx<'_>, object: &mut Object) -> Result<(), Status> {
    meta::prepare_create(cx, object)?;
    owners::dedupe(cx, object, false);
    strategy::prepare_create(cx, object);
    kinds::default(&cx.row, cx.version(), object);
    Ok(())
}

/// One attempt, with so many generated `names` left to try; none when something that it rested on has changed.
async fn attempt(
    cx: &mut Cx<'_>,
    mut object: Object,
    managers: Option<&str>,
    dry_run: bool,
    names: &mut usize,
) -> Result<Option<Made>, Status> {
    let name = meta::generated_name(cx, &object);
    meta::check_name(cx, &name)?;
    let generated = meta_str(&object, "name").is_empty() && !name.is_empty();
    if !name.is_empty() {
        set_meta(&mut object, "name", name.clone());
    }
    strategy::name_given(cx, &mut object);
    let (mut object, mut terms) = admit(cx, object, managers, &name, dry_run).await?;
    // Webhooks may have named it otherwise.
    let generated = generated && meta_str(&object, "name") == name;
    let name = meta_str(&object, "name").to_owned();
    let key: Arc<str> = keys::key(&cx.row, cx.namespace(), &name).into();
    if dry_run {
        rests_on::checks(cx).await?;
        if cx.server.store.get(&key).await?.0.is_some() {
            return Err(Status::already_exists(&cx.row.group, &cx.row.plural, &name));
        }
        cx.warnings.append(&mut terms.warnings);
        managers::put(&mut object, managers);
        return Ok(Some(Made::Dry(object)));
    }
    let (api_version, kind) = convert::storage_type(&cx.row);
    let value = stored::encode_managed(&convert::save(cx, object).await?, managers, &api_version, &kind)?;
    let Terms { mut checks, mut ops, mut warnings } = terms;
    // Last of all: what takes its time, as webhooks do, is done.
    checks.extend(rests_on::checks(cx).await?);
    checks.extend(cx.definition());
    let at = checks.len();
    checks.push(Check::Absent(Arc::clone(&key)));
    ops.insert(0, Op::Put(key, value));
    match cx.server.store.transact(Txn { checks, ops }).await? {
        TxnOutcome::Committed { entries, .. } => {
            cx.warnings.append(&mut warnings);
            match entries.into_iter().next().flatten() {
                Some(entry) => Ok(Some(Made::Stored(entry))),
                None => Err(Status::internal("the store returned no entry for a put")),
            }
        }
        TxnOutcome::Failed { current, .. } => {
            let taken = current.get(at).is_some_and(Option::is_some);
            if taken && !generated {
                return Err(Status::already_exists(&cx.row.group, &cx.row.plural, &name));
            }
            if taken {
                *names -= 1;
                if *names == 0 {
                    return Err(Status::generate_name_conflict(&cx.row.group, &cx.row.plural, &name));
                }
            }
            // Otherwise something that admission rested on has changed: decide again.
            Ok(None)
        }
    }
}

/// The reply when preconditions keep changing.
pub(crate) fn busy() -> Status {
    Status::too_many_requests("the objects that this request depends on keep changing, please try again", 1)
}

/// Admission and validation of a new object; returns it with what it rests on.
async fn admit(
    cx: &Cx<'_>,
    object: Object,
    managers: Option<&str>,
    name: &str,
    dry_run: bool,
) -> Result<(Object, Terms), Status> {
    let server: &Inner = cx.server;
    let namespace = cx.namespace().unwrap_or_default().to_owned();
    let mut attributes = Attributes {
        operation: Operation::Create,
        caller: cx.caller,
        row: &cx.row,
        version: &cx.version().name,
        subresource: "",
        namespace: &namespace,
        name: name.to_owned(),
        object,
        old: None,
        managers,
        old_entry: None,
        deletion: None,
        dry_run,
        env: &*server.env,
    };
    let mut found = admission::fetch(&*server.untimed, &server.plugins, &attributes).await?;
    steps::admit(cx, Asked::ALL, &mut attributes, &mut found).await?;
    owners::dedupe(cx, &mut attributes.object, true);
    crate::certificates::complete(server, &mut attributes).await?;
    kinds::default(&cx.row, cx.version(), &mut attributes.object);
    let mut warnings = strategy::admitted(cx, &mut attributes.object);
    let errors = server.metrics.cel.timed(&cx.row, cx.version(), &*server.env, || {
        kinds::validate_create(&cx.row, cx.version(), &mut attributes.object)
    });
    if !errors.is_empty() {
        return Err(meta::invalid(cx, &attributes.name, &errors));
    }
    extend::annotate(cx, &attributes, &found);
    steps::validate(cx, Asked::ALL, &attributes, &found).await?;
    server.check_privileges(cx, &attributes.object, None).await?;
    let mut terms = admission::terms(&server.plugins, &mut attributes, found)?;
    warnings.append(&mut terms.warnings);
    terms.warnings = warnings;
    let Attributes { object, .. } = attributes;
    Ok((object, terms))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use jiff::Timestamp;

    use super::*;

    /// A clock that is so many seconds later whenever somebody looks.
    struct Steps(i64, AtomicI64);

    impl Env for Steps {
        fn now(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH + SignedDuration::from_secs(self.1.fetch_add(self.0, Ordering::Relaxed))
        }

        fn random(&self) -> u64 {
            0
        }
    }

    #[test]
    fn tries_come_to_an_end() {
        for (step_s, want) in [(0, TRIES), (10, 7), (61, 1)] {
            let env: Arc<dyn Env> = Arc::new(Steps(step_s, AtomicI64::new(0)));
            assert_eq!(tries(&env).count(), want, "{step_s} s each");
        }
    }
}
