//! Object literals, whose names say where they stand: `Object.spec{…}` is the value of the field `spec` of an `Object{…}`.
//!
//! Upstream looks at that when there is a value (`CheckTypeNamesMatchFieldPathNames` in `k8s.io/apiserver/pkg/cel/mutation/dynamic`);
//! here it is read from the text, as far as it goes: what comes from a variable or a function may be of any name. Lists and maps in
//! between have no names: what is in them is named after the field that holds them.

use crate::ast::{Comprehension, Expr, Kind, Macro};

/// The first literal whose name is not that of its place: its name, and that.
pub(crate) fn misnamed(expr: &Expr, place: Option<&str>) -> Option<(String, String)> {
    let anywhere = |exprs: &[&Expr]| exprs.iter().find_map(|expr| misnamed(expr, None));
    match &expr.kind {
        Kind::Literal(_) | Kind::Ident(_) => None,
        Kind::Struct { name, fields } => {
            if let Some(place) = place.filter(|place| **place != **name) {
                return Some((name.to_string(), place.to_owned()));
            }
            fields.iter().find_map(|(_, field, value)| {
                // Only what is an object has places below it that are named after it.
                let below = format!("{name}.{field}");
                let is_object = &**name == OBJECT || name.starts_with(BELOW);
                misnamed(value, is_object.then_some(below.as_str()))
            })
        }
        Kind::List(items) => items.iter().find_map(|(_, item)| misnamed(item, place)),
        Kind::Map(entries) => {
            entries.iter().find_map(|(_, key, value)| misnamed(key, None).or_else(|| misnamed(value, place)))
        }
        Kind::Ternary(parts) => {
            let [condition, yes, no] = &**parts;
            misnamed(condition, None).or_else(|| misnamed(yes, place)).or_else(|| misnamed(no, place))
        }
        Kind::Select { operand, .. } => misnamed(operand, None),
        Kind::Index { operand, index, .. } => anywhere(&[operand, index]),
        Kind::Call { args, .. } | Kind::And(args) | Kind::Or(args) => args.iter().find_map(|arg| misnamed(arg, None)),
        Kind::Comprehension(comprehension) => {
            let Comprehension { kind, range, filter, body, .. } = &**comprehension;
            // What becomes of items stands where the list or the map of them does.
            let place = place.filter(|_| {
                use Macro::{Bind, Map, TransformList, TransformMap, TransformMapEntry};
                matches!(kind, Map | TransformList | TransformMap | TransformMapEntry | Bind)
            });
            let outer = std::iter::once(range).chain(filter).find_map(|expr| misnamed(expr, None));
            outer.or_else(|| misnamed(body, place))
        }
    }
}

const OBJECT: &str = "Object";
const BELOW: &str = "Object.";

#[cfg(test)]
mod tests {
    use crate::{Env, Program, Type};

    #[track_caller]
    fn check(source: &str, want: Option<(&str, &str)>) {
        let env = Env::new().with("object", Type::Dyn).with_struct("Object").with_struct("JSONPatch");
        let program = Program::compile(source, &env).expect("a program");
        let want = want.map(|(found, place)| (found.to_owned(), place.to_owned()));
        assert_eq!(program.misnamed(None), want, "{source}");
    }

    #[test]
    fn literals_are_named_after_their_place() {
        check("Object{spec: Object.spec{replicas: 1}}", None);
        check("Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{}}}}", None);
        check("Object{spec: Object.spec{containers: [Object.spec.containers{name: 'a'}]}}", None);
        check("Object{spec: object.x ? Object.spec{} : Object.spec{a: 1}}", None);
        let mapped = "object.l.map(x, Object.spec.containers{name: x})";
        check(&format!("Object{{spec: Object.spec{{containers: {mapped}}}}}"), None);
        check("[JSONPatch{op: 'add', path: '/spec', value: Object.spec{a: Object.spec.a{}}}]", None);
        check("Object{spec: Object.status{}}", Some(("Object.status", "Object.spec")));
        check("Object{spec: Object.spec{a: Object.spec.b{}}}", Some(("Object.spec.b", "Object.spec.a")));
        check("Object{spec: Object.spec{a: [Object.a{}]}}", Some(("Object.a", "Object.spec.a")));
        check(
            &format!("Object{{spec: Object.spec{{other: {mapped}}}}}"),
            Some(("Object.spec.containers", "Object.spec.other")),
        );
        check("object.x ? Object{} : Object{spec: Object{}}", Some(("Object", "Object.spec")));
        // Maps have no names of their own, as lists have none.
        check("Object{spec: Object.spec{m: {'k': Object.spec.m{a: [Object.spec.m.a{}]}}}}", None);
        check("Object{spec: Object.spec{m: {'k': Object.spec.m.k{}}}}", Some(("Object.spec.m.k", "Object.spec.m")));
        let mapped = "object.m.transformMap(k, v, Object.spec.m{a: v})";
        check(&format!("Object{{spec: Object.spec{{m: {mapped}}}}}"), None);
        check(&format!("Object{{spec: Object.spec{{n: {mapped}}}}}"), Some(("Object.spec.m", "Object.spec.n")));
        check(
            "[JSONPatch{op: 'add', path: '/x', value: Object.spec{a: Object.b{}}}]",
            Some(("Object.b", "Object.spec.a")),
        );
    }

    #[test]
    fn the_whole_has_a_name_where_it_is_to_have_one() {
        let env = Env::new().with_struct("Object");
        for (source, is_named) in [("Object{}", true), ("Object.spec{}", false)] {
            let program = Program::compile(source, &env).expect("a program");
            assert_eq!(program.misnamed(Some("Object")).is_none(), is_named, "{source}");
        }
    }
}
