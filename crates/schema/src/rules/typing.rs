//! What is odd about an admission policy's expressions, once the kinds that it is about are looked at.
//!
//! A policy is compiled without types when it is written, since its objects may be of any kind. So a
//! field that no such object has is found only when the policy is asked, or here, for the kinds that it
//! names. These are warnings: a kind may get the field later.
//! Upstream: `k8s.io/apiserver/pkg/admission/plugin/policy/validating/typechecking.go`.

use std::sync::Arc;

use carrack_cel::{Field, Program, Type};
use serde_json::Value;

use super::declare::type_of;
use crate::builtin::{self, OBJECT_META};
use crate::schema::Schema;
use crate::validate::expressions;

/// Most kinds that a policy is looked at for.
const MAX_KINDS: usize = 10;

/// A kind that a policy may be about.
#[derive(Clone, Debug)]
pub struct TypedKind {
    /// API group; empty for the core group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// The type of its objects.
    type_: Type,
}

impl TypedKind {
    /// A kind with the schema of its objects.
    #[must_use]
    pub fn new(group: &str, version: &str, kind: &str, schema: &Schema) -> TypedKind {
        // Schemas of schemas go round in circles.
        let recursive = kind == "CustomResourceDefinition";
        let type_ =
            if recursive { Type::Dyn } else { whole(type_of(schema, &format!("{group}/{version}.{kind}"), true)) };
        TypedKind { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned(), type_ }
    }
}

/// The type with all metadata: rules of a custom resource see its names only, policies see all.
fn whole(type_: Type) -> Type {
    let (Type::Object(object), Some(schema)) = (&type_, builtin::schema(OBJECT_META)) else { return type_ };
    let mut object = (**object).clone();
    object
        .fields
        .insert("metadata".into(), Field { json: "metadata".into(), type_: type_of(schema, "metadata", false) });
    Type::Object(Arc::new(object))
}

/// A warning about an expression of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeWarning {
    /// Where the expression stands, such as `spec.validations[0].expression`.
    pub field: String,
    /// For which kinds it does not fit, and why; a line or more each.
    pub text: String,
}

/// The resources that a policy names without wildcards: group, version, plural.
pub fn named_resources(policy: &Value) -> Vec<(String, String, String)> {
    let mut named = Vec::new();
    let texts = |rule: &Value, field: &str| -> Vec<String> {
        let list = rule[field].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    for rule in policy["spec"]["matchConstraints"]["resourceRules"].as_array().into_iter().flatten() {
        let (groups, versions, plurals) =
            (texts(rule, "apiGroups"), texts(rule, "apiVersions"), texts(rule, "resources"));
        let wild = |list: &[String]| list.iter().any(|text| text.contains('*'));
        if wild(&groups) || wild(&versions) || wild(&plurals) {
            continue;
        }
        for (group, version) in groups.iter().flat_map(|group| versions.iter().map(move |version| (group, version))) {
            for plural in plurals.iter().filter(|plural| !plural.contains('/')) {
                let id = (group.clone(), version.clone(), plural.clone());
                if !named.contains(&id) {
                    named.push(id);
                }
            }
        }
    }
    named.truncate(MAX_KINDS);
    named
}

/// Looks at the expressions of a ValidatingAdmissionPolicy for these kinds. `params` is the kind of its
/// parameters, if that is known.
#[must_use]
pub fn type_warnings(policy: &Value, kinds: &[TypedKind], params: Option<&TypedKind>) -> Vec<TypeWarning> {
    let spec = &policy["spec"];
    let variables: Vec<&Value> = spec["variables"].as_array().into_iter().flatten().collect();
    let has_params = spec["paramKind"].is_object();
    let mut warnings = Vec::new();
    for (index, validation) in spec["validations"].as_array().into_iter().flatten().enumerate() {
        for field in ["expression", "messageExpression"] {
            let Some(source) = validation[field].as_str().filter(|source| !source.is_empty()) else { continue };
            let mut lines = Vec::new();
            for kind in kinds {
                let mut env = expressions::policy_env(has_params, variables.iter().copied())
                    .with("object", kind.type_.clone())
                    .with("oldObject", kind.type_.clone());
                if let Some(params) = params {
                    env = env.with("params", params.type_.clone());
                }
                if let Err(error) = Program::compile(source, &env) {
                    let version = if kind.group.is_empty() {
                        kind.version.clone()
                    } else {
                        format!("{}/{}", kind.group, kind.version)
                    };
                    lines.push(format!("{version}, Kind={}: {error}\n", kind.kind));
                }
            }
            if !lines.is_empty() {
                let field = format!("spec.validations[{index}].{field}");
                warnings.push(TypeWarning { field, text: lines.concat() });
            }
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table;

    fn kind(group: &str, version: &str, kind: &str) -> TypedKind {
        let row = table::find_kind(group, kind).expect("a kind");
        let version = row.versions.iter().find(|known| known.name == version).expect("a version");
        TypedKind::new(group, &version.name, kind, version.schema())
    }

    fn policy(expressions: &[&str]) -> Value {
        let validations: Vec<Value> = expressions.iter().map(|text| json!({"expression": text})).collect();
        json!({"spec": {"validations": validations, "variables": [{"name": "x", "expression": "1"}], "matchConstraints": {"resourceRules": [
            {"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments", "deployments/scale"], "operations": ["CREATE"]},
            {"apiGroups": [""], "apiVersions": ["*"], "resources": ["pods"], "operations": ["CREATE"]}]}}})
    }

    #[test]
    fn fields_that_are_not_there_are_told_of() {
        let deployment = [kind("apps", "v1", "Deployment")];
        let warned = |text: &str| type_warnings(&policy(&[text]), &deployment, None);
        for good in [
            "object.spec.replicas > 1",
            "object.metadata.labels['a'] == 'b' && has(oldObject.spec)",
            "variables.x == 1 || request.operation == 'CREATE'",
            "object.spec.template.spec.containers.all(c, c.image.startsWith('x'))",
        ] {
            assert_eq!(warned(good), [], "{good}");
        }
        for bad in ["object.spec.replica > 1", "object.spec.replicas == 'a'", "object.metadata.label == 'x'"] {
            let warnings = warned(bad);
            assert_eq!(warnings.len(), 1, "{bad}");
            assert_eq!(warnings[0].field, "spec.validations[0].expression");
            assert!(warnings[0].text.starts_with("apps/v1, Kind=Deployment: "), "{}", warnings[0].text);
        }
    }

    #[test]
    fn wildcards_name_nothing() {
        let named = named_resources(&policy(&[]));
        assert_eq!(named, [("apps".to_owned(), "v1".to_owned(), "deployments".to_owned())]);
    }

    #[test]
    fn every_built_in_kind_has_a_type() {
        for row in table::builtin() {
            for version in &row.versions {
                let typed = TypedKind::new(&row.group, &version.name, &row.kind, version.schema());
                assert!(matches!(typed.type_, Type::Object(_) | Type::Dyn), "{}", row.kind);
            }
        }
    }
}
