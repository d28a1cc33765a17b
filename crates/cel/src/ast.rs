//! An expression as it was written, with macros recognized.

use std::sync::Arc;

use regex::Regex;

use crate::value::Value;

/// A node and the byte of the text that it is about.
#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub at: u32,
    pub kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Literal(Value),
    Ident(Arc<str>),
    /// `a.b`, `a.?b`, and `has(a.b)` as a test.
    Select {
        operand: Box<Expr>,
        field: Arc<str>,
        optional: bool,
        test: bool,
    },
    /// `a[b]`, `a[?b]`
    Index {
        operand: Box<Expr>,
        index: Box<Expr>,
        optional: bool,
    },
    /// A function, operators included; of a method, the target is the first argument.
    Call {
        function: Arc<str>,
        method: bool,
        args: Vec<Expr>,
        regex: Option<Box<Regex>>,
    },
    /// All of them, or one of them.
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Ternary(Box<[Expr; 3]>),
    /// Items, each with whether it is left out when it is an empty optional.
    List(Vec<(bool, Expr)>),
    Map(Vec<(bool, Expr, Expr)>),
    /// `Name{field: value}`
    Struct {
        name: Arc<str>,
        fields: Vec<(bool, Arc<str>, Expr)>,
    },
    Comprehension(Box<Comprehension>),
}

/// What a macro does with each item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Macro {
    All,
    Exists,
    ExistsOne,
    Filter,
    Map,
    TransformList,
    TransformMap,
    TransformMapEntry,
    OptMap,
    OptFlatMap,
    Bind,
}

/// A macro over a list, a map, an optional, or (`cel.bind`) one value.
#[derive(Clone, Debug)]
pub(crate) struct Comprehension {
    pub kind: Macro,
    pub range: Expr,
    /// One variable, or two: index and item, key and value.
    pub variables: Vec<Arc<str>>,
    /// Which items are taken, for the macros that have it.
    pub filter: Option<Expr>,
    pub body: Expr,
}
