//! `DeleteOptions`, from the body or the query.

use carrack_schema::error::FieldError;
use serde_json::{Value, json};

use crate::context::Cx;
use crate::object::{Object, at, str_at};
use crate::registry::{decode, options};
use crate::status::Status;

/// What becomes of an object's dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    Orphan,
    Background,
    Foreground,
}

/// How an object is to be deleted.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub grace_period_s: Option<i64>,
    pub propagation: Option<Propagation>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub dry_run: bool,
    /// It is an eviction: the pod says that it goes for the cluster's sake.
    pub evicts: bool,
    /// It is the server's own: nobody's webhook or policy is asked.
    pub own: bool,
}

impl DeleteOptions {
    /// Reads them of the body, or of the query if there is none: never of both, as upstream has it. Only that nothing
    /// is to be deleted at all is heard from wherever it is said.
    pub(crate) fn read(cx: &Cx<'_>, body: &[u8]) -> Result<DeleteOptions, Status> {
        let mut options = DeleteOptions { dry_run: cx.dry_run()?, ..DeleteOptions::default() };
        if body.is_empty() {
            options.take_query(cx)?;
            return Ok(options);
        }
        let object = decode::any(cx, body, "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions")?;
        if !matches!(str_at(&object, &["kind"]), "" | "DeleteOptions") {
            return Err(Status::bad_request(format!("expected DeleteOptions, found {:?}", str_at(&object, &["kind"]))));
        }
        options.take(&object)?;
        Ok(options)
    }

    fn take_query(&mut self, cx: &Cx<'_>) -> Result<(), Status> {
        let mut said = Object::new();
        if let Some(text) = cx.query.non_empty("gracePeriodSeconds") {
            let seconds: i64 =
                text.parse().map_err(|_| Status::bad_request(format!("invalid gracePeriodSeconds {text:?}")))?;
            said.insert("gracePeriodSeconds".to_owned(), seconds.into());
        }
        if let Some(text) = cx.query.non_empty("propagationPolicy") {
            said.insert("propagationPolicy".to_owned(), text.into());
        }
        if cx.query.get("orphanDependents").is_some() {
            said.insert("orphanDependents".to_owned(), cx.query.flag("orphanDependents").into());
        }
        self.take(&said)
    }

    /// Takes over what `DeleteOptions` say, be they a body or in one.
    pub(crate) fn take(&mut self, object: &Object) -> Result<(), Status> {
        let mistyped = |field: &str| Status::bad_request(format!("DeleteOptions: {field} is of the wrong type"));
        if let Some(seconds) = at(object, &["gracePeriodSeconds"]) {
            self.grace_period_s = Some(seconds.as_i64().ok_or_else(|| mistyped("gracePeriodSeconds"))?);
        }
        if at(object, &["propagationPolicy"]).is_some() && at(object, &["orphanDependents"]).is_some() {
            let text = "orphanDependents and deletionPropagation cannot be both set";
            let fault = FieldError::invalid("propagationPolicy", object["propagationPolicy"].clone(), text);
            return Err(options::invalid("DeleteOptions", &[fault]));
        }
        if let Some(policy) = at(object, &["propagationPolicy"]) {
            self.propagation = Some(propagation(policy.as_str().ok_or_else(|| mistyped("propagationPolicy"))?)?);
        }
        if let Some(flag) = at(object, &["orphanDependents"]) {
            self.propagation = Some(orphan(flag.as_bool().ok_or_else(|| mistyped("orphanDependents"))?));
        }
        let text = |path: &[&str]| at(object, path).and_then(Value::as_str).map(str::to_owned);
        self.uid = text(&["preconditions", "uid"]);
        self.resource_version = text(&["preconditions", "resourceVersion"]);
        if let Some(list) = at(object, &["dryRun"]).and_then(Value::as_array) {
            let values: Vec<&str> = list.iter().map(|value| value.as_str().unwrap_or_default()).collect();
            if let Some(fault) = options::dry_run(&values) {
                return Err(options::invalid("DeleteOptions", &[fault]));
            }
            self.dry_run |= !values.is_empty();
        }
        Ok(())
    }

    /// As those are told who are asked about the deletion.
    pub(crate) fn to_json(&self) -> Value {
        let mut json = json!({"apiVersion": "meta.k8s.io/v1", "kind": "DeleteOptions"});
        if let Some(seconds) = self.grace_period_s {
            json["gracePeriodSeconds"] = seconds.into();
        }
        if let Some(propagation) = self.propagation {
            json["propagationPolicy"] = format!("{propagation:?}").into();
        }
        for (field, value) in [("uid", &self.uid), ("resourceVersion", &self.resource_version)] {
            if let Some(value) = value {
                json["preconditions"][field] = value.as_str().into();
            }
        }
        if self.dry_run {
            json["dryRun"] = json!(["All"]);
        }
        json
    }

    /// The preconditions against an object.
    pub(crate) fn check_preconditions(&self, cx: &Cx<'_>, name: &str, uid: &str, revision: &str) -> Result<(), Status> {
        if let Some(wanted) = self.uid.as_deref().filter(|wanted| *wanted != uid) {
            return Err(cx.conflict(
                name,
                &format!("the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"),
            ));
        }
        if let Some(wanted) = self.resource_version.as_deref().filter(|wanted| *wanted != revision) {
            return Err(cx.conflict(
                name,
                &format!("the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({revision}). The object might have been modified"),
            ));
        }
        Ok(())
    }
}

fn orphan(flag: bool) -> Propagation {
    if flag { Propagation::Orphan } else { Propagation::Background }
}

fn propagation(text: &str) -> Result<Propagation, Status> {
    match text {
        "Orphan" => Ok(Propagation::Orphan),
        "Background" => Ok(Propagation::Background),
        "Foreground" => Ok(Propagation::Foreground),
        other => {
            let known = ["Foreground", "Background", "Orphan", "nil"];
            Err(options::invalid("DeleteOptions", &[FieldError::not_supported("propagationPolicy", other, &known)]))
        }
    }
}
