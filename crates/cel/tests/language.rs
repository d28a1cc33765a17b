//! Expressions and what becomes of them.
#![expect(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_cel::{
    Bindings, Budget, Check, Decision, Env, EvalError, ListKind, ListOf, Program, Type, Value, Variables,
};
use serde_json::json;

struct World(serde_json::Value);

impl Bindings for World {
    fn get(&self, name: &str) -> Option<Value> {
        match name {
            "authorizer" => Some(Check::authorizer()),
            _ => self.0.get(name).map(|value| Value::from_json(value, &Type::Dyn)),
        }
    }

    fn authorize(&self, check: &Check) -> Decision {
        Decision { allowed: check.verb == "get" && check.resource == "pods", reason: String::new(), error: None }
    }
}

fn env() -> Env {
    Env::new().with("self", Type::Dyn).with("authorizer", Type::Opaque("Authorizer"))
}

fn world() -> World {
    World(json!({"self": {
        "a": 1, "b": "text", "list": [3, 1, 2], "map": {"x": 1, "y": 2}, "empty": [], "nothing": null,
        "objects": [{"name": "one", "size": 1}, {"name": "two", "size": 2}],
        "at": "2024-02-29T12:30:00Z", "deep": {"er": {"est": true}}, "half": 0.5,
    }}))
}

/// What an expression is: its value as JSON, or its error.
fn run(source: &str) -> Result<serde_json::Value, String> {
    let program = Program::compile(source, &env()).map_err(|error| error.to_string())?;
    let value = program.eval(&world(), &mut Budget::new(1_000_000)).map_err(|error| error.to_string())?;
    Ok(value.to_json().unwrap_or_else(|| format!("<{}>", value.type_name()).into()))
}

#[track_caller]
fn check(cases: &[(&str, serde_json::Value)]) {
    for (source, expected) in cases {
        assert_eq!(run(source).as_ref(), Ok(expected), "{source}");
    }
}

#[track_caller]
fn check_errors(cases: &[(&str, &str)]) {
    for (source, expected) in cases {
        match run(source) {
            Ok(value) => panic!("{source} is {value}"),
            Err(error) => assert!(error.contains(expected), "{source}: {error}"),
        }
    }
}

#[test]
fn operators() {
    check(&[
        ("1 + 2 * 3 - 4 / 2 % 3", json!(5)),
        ("-9223372036854775808", json!(i64::MIN)),
        ("0x1F", json!(31)),
        ("-(2) + 1", json!(-1)),
        ("!!true && !false", json!(true)),
        ("2.5e1 * 2.0", json!(50)),
        ("1u + 2u", json!(3)),
        ("'a' + \"b\" + r'\\n' + '\\n' + '''x'''", json!("ab\\n\nx")),
        ("b'\\x41bc' == bytes('Abc')", json!(true)),
        ("1 < 2.5 && 3u > 2", json!(true)),
        ("'b' in ['a', 'b'] && 'x' in {'x': 1} && !(2 in [1])", json!(true)),
        ("true ? 'yes' : 'no'", json!("yes")),
        ("[1, 2] + [3] == [1, 2, 3]", json!(true)),
        ("{'a': 1}['a'] + {'b': 2}.b", json!(3)),
        ("dyn(1) == dyn(1.0)", json!(true)),
        ("self.a == 1.0", json!(true)),
        ("type(1) == int && type('') == string && type([]) == list", json!(true)),
        ("type(timestamp(0)) == google.protobuf.Timestamp", json!(true)),
        ("false && 1 / 0 == 1", json!(false)),
        ("1 / 0 == 1 || true", json!(true)),
        ("// a comment\n 1", json!(1)),
    ]);
}

#[test]
fn fields_and_macros() {
    check(&[
        ("self.b.size() + size(self.list)", json!(7)),
        ("has(self.a) && !has(self.z) && has(self.deep.er.est)", json!(true)),
        ("self.list.all(x, x > 0) && self.list.exists(x, x == 2) && self.list.exists_one(x, x == 3)", json!(true)),
        ("self.list.filter(x, x > 1).map(x, x * 10)", json!([30, 20])),
        ("self.list.map(x, x > 1, x + 1)", json!([4, 3])),
        ("self.map.map(k, k)", json!(["x", "y"])),
        ("self.map.all(k, self.map[k] > 0)", json!(true)),
        ("self.list.all(i, x, i < 3)", json!(true)),
        ("self.map.transformMap(k, v, v * 2)", json!({"x": 2, "y": 4})),
        ("self.map.transformList(k, v, k + string(v))", json!(["x1", "y2"])),
        ("self.map.transformMapEntry(k, v, {string(v): k})", json!({"1": "x", "2": "y"})),
        ("cel.bind(n, 3, n * n)", json!(9)),
        ("self.objects.map(o, o.name).join('-')", json!("one-two")),
        ("self.?z.hasValue() || self.?a.orValue(0) == 1", json!(true)),
        ("self.?deep.er.est.orValue(false)", json!(true)),
        ("self.list[?9].orValue(7)", json!(7)),
        // What stands in for a value is looked at only where there is none.
        ("self.?a.orValue(self.z)", json!(1)),
        ("self.?a.or(optional.of(self.z)).value()", json!(1)),
        ("self.?z.or(self.?a).value()", json!(1)),
        ("duration('1.5s').getMilliseconds()", json!(1500)),
        ("optional.of(3).optMap(x, x + 1).value()", json!(4)),
        ("{?'a': self.?z, 'b': 1}", json!({"b": 1})),
        ("[?self.?z, ?self.?a]", json!([1])),
        ("self.nothing == null", json!(true)),
        // An error in one round does not count when another decides.
        ("[0, 1].exists(x, 1 / x == 1)", json!(true)),
    ]);
}

#[test]
fn libraries() {
    check(&[
        ("'hello'.substring(1, 3) + 'hello'.charAt(0) + ' x '.trim()", json!("elhx")),
        ("'a,b,c'.split(',', 2)", json!(["a", "b,c"])),
        ("'abcabc'.indexOf('c', 3) + 'abcabc'.lastIndexOf('a')", json!(8)),
        ("'%s is %d, %.2f, %x'.format(['a', 1, 2.5, 255])", json!("a is 1, 2.50, ff")),
        ("'abc'.matches('^a.c$') && 'a1b22'.findAll('[0-9]+') == ['1', '22']", json!(true)),
        ("self.list.sum() + self.list.max() - self.list.min()", json!(8)),
        ("[1, 2].isSorted() && !self.list.isSorted() && self.list.indexOf(2) == 2", json!(true)),
        ("sets.contains([1, 2], [2]) && sets.equivalent([1, 1], [1]) && !sets.intersects([1], [2])", json!(true)),
        ("url('https://u@host:80/p?a=1&a=2').getHost() + url('https://host/p').getEscapedPath()", json!("host:80/p")),
        ("url('https://h/?a=1&a=b%20c').getQuery()['a']", json!(["1", "b c"])),
        ("isURL('nope') || isURL('/path')", json!(true)),
        ("ip('10.0.0.1').family() == 4 && cidr('10.0.0.0/8').containsIP('10.1.1.1')", json!(true)),
        ("cidr('10.0.0.0/8').containsCIDR('10.0.0.0/16') && !isIP('300.0.0.1')", json!(true)),
        ("string(cidr('10.1.2.3/8').masked()) + string(ip('::1'))", json!("10.0.0.0/8::1")),
        (
            "quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('500m').add(quantity('500m')).asInteger() == 1",
            json!(true),
        ),
        ("semver('1.2.3-rc.1').isLessThan(semver('1.2.3')) && semver('v2', true).major() == 2", json!(true)),
        (
            "format.dns1123Label().validate('Ab').hasValue() && !format.named('uuid').value().validate('123e4567-e89b-12d3-a456-426614174000').hasValue()",
            json!(true),
        ),
        ("duration('1h30m') > duration('80m') && duration('90s').getMinutes() == 1", json!(true)),
        ("timestamp(self.at).getDayOfMonth() == 28 && timestamp(self.at).getHours('+02:00') == 14", json!(true)),
        ("string(timestamp(self.at) + duration('1s'))", json!("2024-02-29T12:30:01Z")),
        ("string(1e30) + string(0.5) + string(duration('1500ms'))", json!("1e+300.51.5s")),
        ("base64.encode(b'hi') + string(base64.decode('aGk='))", json!("aGk=hi")),
        ("math.greatest(1, 3, 2) + math.least([4, 5])", json!(7)),
        // One of them has no double that is equal to it.
        ("[9007199254740993, 9007199254740992.0].sort()[0] == 9007199254740992", json!(true)),
        ("[3, 1].sort() == [1, 3] && [1, 1, 2].distinct() == [1, 2] && [[1], [2]].flatten() == [1, 2]", json!(true)),
        ("authorizer.group('').resource('pods').namespace('x').check('get').allowed()", json!(true)),
        ("authorizer.group('').resource('pods').check('delete').allowed()", json!(false)),
    ]);
}

#[test]
fn faults() {
    check_errors(&[
        ("1 +", "ERROR: <input>:1:4: Syntax error: mismatched input '<EOF>'"),
        ("nobody", "undeclared reference to 'nobody' (in container '')"),
        ("nobody.call(1)", "undeclared reference to 'nobody'"),
        ("self.x.unheard()", "undeclared reference to 'unheard'"),
        ("1 == 'a'", "found no matching overload for '_==_' applied to '(int, string)'"),
        ("1 + 'a'", "found no matching overload for '_+_' applied to '(int, string)'"),
        ("['a'].sum() == ''", "found no matching overload for 'sum' applied to '(list(string))'"),
        ("[[1]].isSorted()", "found no matching overload for 'isSorted' applied to '(list(list(int)))'"),
        ("'a' ? 1 : 2", "no matching overload for '_?_:_'"),
        ("[1].all(x, x)", "expected type 'bool' but found 'int'"),
        ("(1).all(x, true)", "cannot be range of a comprehension"),
        ("'x'.matches('[')", "invalid matches argument"),
        ("{[1]: 2}", "unsupported key type: list(int)"),
        ("namespace", "reserved identifier"),
        ("9223372036854775807 + 1", "integer overflow"),
        ("1 / 0", "division by zero"),
        ("self.z", "no such key: z"),
        ("self.list[3]", "index out of bounds: 3"),
        ("self.a.b", "no such key"),
        ("int('x')", "type conversion error"),
        ("optional.none().value()", "optional.none() dereference"),
    ]);
}

#[test]
fn typed_objects() {
    let field = |type_: Type| carrack_cel::Field { json: "x-y".into(), type_ };
    let object = carrack_cel::ObjectOf {
        name: "Self".to_owned(),
        fields: [("x__dash__y".into(), field(Type::Int))].into_iter().collect(),
    };
    let type_ = Type::Object(std::sync::Arc::new(object));
    let env = Env::new().with("self", type_.clone());
    assert!(
        Program::compile("self.other == 1", &env).is_err_and(|e| e.to_string().contains("undefined field 'other'"))
    );
    let program = Program::compile("self.`x-y` == 1 && self.x__dash__y == 1", &env).expect("compiles");
    let self_ = Value::from_json(&json!({"x-y": 1}), &type_);
    let world = carrack_cel::Variables([("self", self_)].into_iter().collect());
    assert_eq!(program.eval(&world, &mut Budget::new(100)), Ok(Value::Bool(true)));
}

#[test]
fn worst_costs() {
    let list = |max| Env::new().with("self", Type::list(Type::String(10), max));
    let cost = |source: &str, env: &Env| Program::compile(source, env).expect("compiles").worst_cost;
    let once = cost("self.all(x, x.startsWith('a'))", &list(10));
    let many = cost("self.all(x, x.startsWith('a'))", &list(1000));
    assert!(many > 50 * once, "{once} {many}");
    assert!(cost("self.all(x, self.all(y, x == y))", &list(100_000)) > 10_000_000);
    assert_eq!(cost("self.all(x, x == '')", &list(carrack_cel::UNBOUNDED)), u64::MAX);
}

#[test]
fn budgets_end_evaluations() {
    let hostile = [
        "[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, true))))))",
        "lists.range(1000000).map(x, lists.range(1000000))",
        "cel.bind(a, 'aaaaaaaaaaaaaaaa'.replace('a', 'aaaaaaaaaaaaaaaa'), a.replace('a', a).replace('a', a).replace('a', a))",
    ];
    for source in hostile {
        exhausts(source);
    }
}

/// An evaluation that ends for its cost, and at once.
#[track_caller]
fn exhausts(source: &str) {
    let program = Program::compile(source, &env()).expect("compiles");
    let mut budget = Budget::new(100_000);
    assert_eq!(program.eval(&world(), &mut budget), Err(EvalError::Exhausted), "{source}");
}

/// An expression about `z`, which has another value in it twice, that one another twice, and so on.
fn doubled(pair: fn(&str) -> String, about: &str) -> String {
    let levels = (0..40).rev().map(|level| (format!("v{level}"), format!("v{}", level + 1)));
    let inner = format!("cel.bind(z, v40, {about})");
    let bound = levels.fold(inner, |inner, (below, name)| format!("cel.bind({name}, {}, {inner})", pair(&below)));
    format!("cel.bind(v0, [1], {bound})")
}

/// No expression is so short that what it makes could be looked at without end.
#[test]
fn what_is_in_others_many_times_over_is_counted_as_far_as_it_is_paid_for() {
    let pairs: [fn(&str) -> String; 2] =
        [|below| format!("[{below}, {below}]"), |below| format!("{{'a': {below}, 'b': {below}}}")];
    for pair in pairs {
        for about in
            ["z == z", "z in [z]", "dyn(1) in [z, z]", "[z].indexOf(z)", "'%s'.format([z])", "sets.contains([z], [z])"]
        {
            exhausts(&doubled(pair, about));
        }
        // What comes out of it is no JSON.
        let program = Program::compile(&doubled(pair, "z"), &env()).expect("compiles");
        let value = program.eval(&world(), &mut Budget::new(100_000)).expect("a value");
        assert!(value.to_json().is_none());
    }
    // Nor a type.
    let keyed = |below: &str| format!("{{{below}: {below}}}");
    let refused = Program::compile(&doubled(keyed, "z == z"), &env());
    assert!(refused.is_err_and(|error| error.to_string().contains("unsupported key type")));
    // Long keys, shown and compared again and again.
    let key = "k".repeat(40_000);
    exhausts(&format!("cel.bind(m, {{'{key}': 1}}, '%s'.format([lists.range(1000).map(i, m)]).size())"));
    exhausts(&format!("cel.bind(m, {{'{key}': 1}}, lists.range(1000).all(i, m == {{'{key}': 1}}))"));
    exhausts("lists.range(20000).distinct()");
}

/// Items of keyed lists are compared with their counterparts alone, on each level: this would take minutes, were it twice.
#[test]
fn lists_in_lists_are_looked_at_once() {
    let field = |name: &str, type_: Type| -> (Arc<str>, carrack_cel::Field) {
        (name.into(), carrack_cel::Field { json: name.into(), type_ })
    };
    let (mut type_, mut a, mut b) = (Type::Int, json!(1), json!(1));
    for _ in 0..30 {
        let fields = [field("name", Type::string()), field("of", type_)].into();
        let item = Type::Object(Arc::new(carrack_cel::ObjectOf { name: "Level".to_owned(), fields }));
        type_ = Type::List(Arc::new(ListOf { item, max: 9, kind: ListKind::Map(Arc::from([Arc::from("name")])) }));
        let (x, y) = (json!({"name": "x"}), json!({"name": "y"}));
        a = json!([{"name": "a", "of": a}, x, y]);
        b = json!([{"name": "a", "of": b}, y, x]);
    }
    let env = Env::new().with("a", type_.clone()).with("b", type_.clone());
    let variables =
        Variables(BTreeMap::from([("a", Value::from_json(&a, &type_)), ("b", Value::from_json(&b, &type_))]));
    let program = Program::compile("a == b", &env).expect("compiles");
    assert_eq!(program.eval(&variables, &mut Budget::new(10_000)), Ok(Value::Bool(true)));
}

#[test]
fn patterns_are_few_and_small() {
    let and = |pattern: &str, count: usize| vec![format!("'x'.matches('{pattern}')"); count].join(" && ");
    let large = r"\\w{1,1000}\\w{1,1000}";
    for (source, refused) in [
        (and("a", 256), false),
        (and("a", 257), true),
        (and(large, 8), false),
        (and(large, 9), true),
        (and(r"(\\w{1,1000}){1,100}", 1), true),
    ] {
        assert_eq!(Program::compile(&source, &env()).is_err(), refused, "{source}");
    }
}

#[test]
fn depth_is_bounded() {
    for open in ["(", "[", "-", "!", "{1:", "[1].map(x,", "true ? 1 : ", "self.b.contains("] {
        drop(Program::compile(&open.repeat(20_000), &env()));
    }
    for (piece, end) in
        [("1+", "1"), ("self.", "b"), ("self[", "0"), ("true&&", "true"), ("1==", "1"), ("true?1:", "1")]
    {
        drop(Program::compile(&(piece.repeat(10_000) + end), &env()));
    }
    // The deepest that is taken can be evaluated on a small stack.
    let deep = format!("{}{}{}", "(1+".repeat(48), "1", ")".repeat(48));
    assert_eq!(run(&deep), Ok(json!(49)));
    let chain = format!("1{}", "+1".repeat(110));
    assert_eq!(run(&chain), Ok(json!(111)));
    let nested = format!("{}true{}", "[1].all(x, ".repeat(45), ")".repeat(45));
    assert_eq!(run(&nested), Ok(json!(true)));
}

/// A list of this kind as long as a request may have it, the numbers up to it in this order.
fn long(kind: ListKind, numbers: impl Iterator<Item = u64>) -> (Type, Value) {
    let item = if kind == ListKind::Atomic { Type::Int } else { Type::Dyn };
    let keyed = matches!(kind, ListKind::Map(_));
    let type_ = Type::List(Arc::new(ListOf { item, max: 1 << 20, kind }));
    let items = numbers.map(|number| if keyed { json!({"name": number, "x": 1}) } else { json!(number) });
    let value = Value::from_json(&items.collect(), &type_);
    (type_, value)
}

/// Each of these would take minutes, were all of the lists looked at each time.
#[test]
fn what_is_long_is_looked_at_as_far_as_it_is_paid_for() {
    const MANY: u64 = 100_000;
    let keyed = || ListKind::Map(Arc::from([Arc::from("name")]));
    for (kind, source) in [
        (ListKind::Atomic, "a.all(x, a.exists(y, true))"),
        (ListKind::Atomic, "a.all(x, a != [x])"),
        (ListKind::Set, "a == b && (a + b).size() == a.size()"),
        (keyed(), "a == b && (a + b).size() == a.size()"),
    ] {
        let (type_, a) = long(kind.clone(), 0..MANY);
        let (_, b) = long(kind, (0..MANY).rev());
        let env = Env::new().with("a", type_.clone()).with("b", type_);
        let program = Program::compile(source, &env).expect(source);
        let variables = Variables(BTreeMap::from([("a", a), ("b", b)]));
        let value = program.eval(&variables, &mut Budget::new(10_000_000)).expect(source);
        assert_eq!(value.to_json(), Some(json!(true)), "{source}");
    }
}

#[test]
fn sets_and_keyed_lists_are_equal_in_any_order() {
    let keyed = || ListKind::Map(Arc::from([Arc::from("name")]));
    for (kind, a, b, equal, both) in [
        (ListKind::Set, json!([1, 2]), json!([2, 1]), true, json!([1, 2])),
        (ListKind::Set, json!([1, 2]), json!([2, 3]), false, json!([1, 2, 3])),
        (ListKind::Set, json!([1, "1"]), json!(["1", 1]), true, json!([1, "1"])),
        (ListKind::Set, json!([1.0]), json!([1]), true, json!([1])),
        (
            keyed(),
            json!([{"name": "a", "x": 1}, {"name": "b", "x": 1}]),
            json!([{"name": "b", "x": 1}, {"name": "a", "x": 1}]),
            true,
            json!([{"name": "a", "x": 1}, {"name": "b", "x": 1}]),
        ),
        (
            keyed(),
            json!([{"name": "a", "x": 1}]),
            json!([{"name": "a", "x": 2}]),
            false,
            json!([{"name": "a", "x": 2}]),
        ),
        (ListKind::Atomic, json!([1, 2]), json!([2, 1]), false, json!([1, 2, 2, 1])),
    ] {
        let type_ = Type::List(Arc::new(ListOf { item: Type::Dyn, max: 9, kind }));
        let env = Env::new().with("a", type_.clone()).with("b", type_.clone());
        let variables =
            Variables(BTreeMap::from([("a", Value::from_json(&a, &type_)), ("b", Value::from_json(&b, &type_))]));
        let value = |source: &str| {
            let program = Program::compile(source, &env).expect(source);
            program.eval(&variables, &mut Budget::new(1000)).expect(source).to_json()
        };
        assert_eq!(value("a == b"), Some(json!(equal)), "{a} {b}");
        assert_eq!(value("a + b"), Some(both), "{a} {b}");
    }
}

mod hostile {
    use super::*;
    use proptest::prelude::*;

    fn words() -> impl Strategy<Value = String> {
        let word = prop::sample::select(vec![
            "self",
            "self.list",
            "self.map",
            ".a",
            ".all(x, ",
            ".map(x, ",
            "[",
            "]",
            "(",
            ")",
            "{",
            "}",
            "1",
            "-1",
            "0u",
            "'a'",
            "b'x'",
            "+",
            "-",
            "*",
            "/",
            "%",
            "&&",
            "||",
            "?",
            ":",
            ",",
            "in",
            "x",
            "has(",
            "size(",
            "9223372036854775807",
            "1e308",
            ".matches('a*')",
            ".format([",
            "duration('1h')",
            "timestamp(0)",
            "optional.none()",
            ".?",
            "[?",
            "null",
            "`a-b`",
            "\\",
            "\u{1f980}",
            "'%s'",
            "quantity('1Gi')",
            "ip('::1')",
            ".split('')",
            ".replace('','aa')",
            "==",
            "<",
            "type(",
            "dyn(",
            "string(",
            "int(",
        ]);
        prop::collection::vec(word, 0..24).prop_map(|words| words.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]
        #[test]
        fn no_text_panics(source in prop_oneof![words(), ".{0,64}"]) {
            if let Ok(program) = Program::compile(&source, &env()) {
                drop(program.eval(&world(), &mut Budget::new(10_000)));
            }
        }
    }
}
