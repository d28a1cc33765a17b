//! DefaultIngressClass: an ingress that names no class gets the default one.

use serde_json::Value;

use super::{AdmissionPlugin, Attributes, Lookup, Needed, Operation};
use crate::object::{Object, at, child_mut, meta, meta_str, name};
use crate::status::Status;

const GROUP: &str = "networking.k8s.io";
const CLASSES: &str = "ingressclasses";
const DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";
const OLD: &str = "kubernetes.io/ingress.class";

pub(super) struct DefaultIngressClass;

fn annotation<'a>(object: &'a Object, key: &str) -> Option<&'a str> {
    meta(object, "annotations").and_then(|annotations| annotations.get(key)).and_then(Value::as_str)
}

fn concerns(attributes: &Attributes<'_>) -> bool {
    attributes.is(GROUP, "ingresses")
        && attributes.operation == Operation::Create
        && at(&attributes.object, &["spec", "ingressClassName"]).is_none()
        && annotation(&attributes.object, OLD).is_none()
}

impl AdmissionPlugin for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        if concerns(attributes) { vec![Needed::all(GROUP, CLASSES, "")] } else { Vec::new() }
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        if !concerns(attributes) {
            return Ok(());
        }
        let classes = lookup.list(GROUP, CLASSES, "").into_iter();
        let mut defaults: Vec<&Object> = classes.filter(|class| annotation(class, DEFAULT) == Some("true")).collect();
        // The newest, then the first by name, as upstream.
        let created = |class: &Object| meta_str(class, "creationTimestamp").to_owned();
        defaults.sort_by(|a, b| created(b).cmp(&created(a)).then_with(|| name(a).cmp(name(b))));
        if let Some(class) = defaults.first() {
            let class = name(class).to_owned();
            child_mut(&mut attributes.object, "spec").insert("ingressClassName".to_owned(), class.into());
        }
        Ok(())
    }
}
