//! Nothing that a client sends brings the process down: whatever the value, every kind decodes,
//! defaults, validates and prints it, or says what is wrong.

use crate::common::make;
use carrack_schema::{convert, crd, decode, default, print, prune, strategic, table, validate};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Names that mean something somewhere, so that values get deep into the rules.
const NAMES: [&str; 28] = [
    "apiVersion",
    "kind",
    "metadata",
    "name",
    "namespace",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "spec",
    "status",
    "template",
    "containers",
    "initContainers",
    "ports",
    "env",
    "resources",
    "limits",
    "requests",
    "volumes",
    "volumeMounts",
    "selector",
    "matchLabels",
    "rules",
    "subjects",
    "roleRef",
    "versions",
    "conditions",
];

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3_i64..70_000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z.:/@-]{0,6}".prop_map(Value::from),
        ".{0,4}".prop_map(Value::from),
        Just(json!("2026-01-02T03:04:05Z")),
    ];
    leaf.prop_recursive(6, 80, 6, |inner| {
        let entry = (prop::sample::select(&NAMES[..]), inner.clone());
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            prop::collection::vec(entry, 0..6)
                .prop_map(|entries| Value::Object(entries.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    prop::collection::vec((prop::sample::select(&NAMES[..]), value()), 0..8)
        .prop_map(|entries| Value::Object(entries.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Map<_, _>>()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn any_object_goes_through_every_kind(object in object(), old in object(), row in 0..table::builtin().len()) {
        let now = "2026-01-02T12:00:00Z".parse().expect("a time");
        let info = &table::builtin()[row];
        let version = info.versions.first().expect("a version");
        let mut raw = object.clone();
        default::apply(info, &version.name, &mut raw);
        let _errors = validate::create(info, &version.name, &raw);
        let _errors = validate::update(info, &version.name, &raw, &old, "");
        prop_assert_eq!(print::cells(info, version, &object, now).len(), print::columns(info, version).len());
        if let Ok(merged) = strategic::apply(old.clone(), object.clone(), version.schema()) {
            prop_assert!(merged.is_object());
        }
        let mut typed = object.clone();
        if decode::conform(&mut typed, version.schema()).is_ok() {
            // What conforms stays as it is, and defaults keep it conforming.
            default::apply(info, &version.name, &mut typed);
            let mut again = typed.clone();
            prop_assert_eq!(decode::conform(&mut again, version.schema()), Ok(vec![]), "{} {}", info.kind, typed);
            default::apply(info, &version.name, &mut again);
            prop_assert_eq!(&again, &typed);
        }
        convert::convert(&info.group, &info.kind, "v1", &mut raw);
    }

    /// What conforms to a kind's schema is defaulted to something that conforms as well, once and for
    /// all, and goes through everything else.
    #[test]
    fn good_forms_stay_good(seed in any::<u64>(), row in 0..table::builtin().len()) {
        let info = &table::builtin()[row];
        let version = info.versions.first().expect("a version");
        let mut object = make(version.schema(), &mut seed.clone(), 7);
        object["kind"] = json!(info.kind);
        object["apiVersion"] = json!(info.api_version(&version.name));
        let now = "2026-01-02T12:00:00Z".parse().expect("a time");
        prop_assert_eq!(decode::conform(&mut object, version.schema()), Ok(vec![]));
        let old = object.clone();
        default::apply(info, &version.name, &mut object);
        let mut again = object.clone();
        prop_assert_eq!(decode::conform(&mut again, version.schema()), Ok(vec![]), "{}", info.kind);
        default::apply(info, &version.name, &mut again);
        prop_assert_eq!(&again, &object, "{} defaulted twice", info.kind);
        let _errors = validate::create(info, &version.name, &object);
        let _errors = validate::update(info, &version.name, &object, &old, "");
        prop_assert_eq!(print::cells(info, version, &object, now).len(), print::columns(info, version).len());
        let merged = strategic::apply(object.clone(), object.clone(), version.schema());
        prop_assert!(merged.is_ok() || merged.is_err_and(|e| e.to_string().contains("merge key")));
    }

    #[test]
    fn any_definition_and_any_custom_resource(definition in object(), schema in value(), object in object()) {
        let _row = crd::resource_info(&definition);
        if let Ok(schema) = carrack_schema::Schema::parse(&schema) {
            let mut pruned = object.clone();
            let _findings = prune::prune(&mut pruned, &schema);
            default::by_schema(&mut pruned, &schema);
            let _errors = validate::schema(&pruned, &schema);
        }
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[\\[\\]{}:,\"a-c0-9 \n&*!-]{0,60}") {
        for format in [decode::Format::Json, decode::Format::Yaml] {
            let _parsed = decode::parse(&bytes, format, decode::Limits::default());
            let _parsed = decode::parse(text.as_bytes(), format, decode::Limits::default());
        }
    }
}
