//! The Common Expression Language as Kubernetes has it.
//!
//! ```text
//!   text ─► lexer, parser ─► Expr ─► check (types, worst-case cost) ─► Program ─► eval under a Budget ─► Value
//! ```
//!
//! What the API server adds to the language decides its shape: expressions come from users, run inside of a
//! write, and may cost neither time nor memory without bound. So every program is checked against declared
//! types before it is taken, its worst case is estimated from the sizes that schemas allow, and its evaluation
//! spends from a [`Budget`]. Nothing here panics or recurses without bound, whatever the text.
//!
//! The language: <https://github.com/google/cel-spec>; what Kubernetes adds:
//! <https://kubernetes.io/docs/reference/using-api/cel/>.

mod ast;
mod budget;
mod check;
mod comprehend;
mod eval;
mod lexer;
mod library;
mod named;
mod parser;
mod pattern;
mod signatures;
mod types;
mod value;

use std::sync::Arc;

pub use budget::{Budget, EvalError};
pub use eval::{Bindings, Decision, Variables};
pub use library::authz::Check;
pub use library::time::parse_duration;
pub use pattern::pattern;
pub use types::{Env, Field, ListKind, ListOf, MapOf, ObjectOf, Type, UNBOUNDED, escape};
pub use value::{List, Value};

/// Longest expression that is read, in bytes.
pub const MAX_SOURCE_BYTES: usize = 100_000;

/// Why a text is no program: upstream's form, with the place in the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CompileError(pub String);

/// A checked expression.
#[derive(Clone, Debug)]
pub struct Program {
    root: Arc<ast::Expr>,
    /// The type of its value.
    pub result: Type,
    /// What an evaluation costs at most, by the sizes that the types of its variables allow.
    pub worst_cost: u64,
    variables: Arc<[Arc<str>]>,
}

impl Program {
    /// Reads and checks an expression.
    ///
    /// # Errors
    /// When it cannot be parsed, names something that there is not, or applies a function to what it does
    /// not take.
    pub fn compile(source: &str, env: &Env) -> Result<Program, CompileError> {
        if source.len() > MAX_SOURCE_BYTES {
            let text =
                format!("expression code point size exceeds limit: size: {}, limit {MAX_SOURCE_BYTES}", source.len());
            return Err(CompileError(text));
        }
        let mut root = parser::parse(source).map_err(|fault| fault.render(source))?;
        let checked = check::check(&mut root, env).map_err(|fault| fault.render(source))?;
        Ok(Program {
            root: Arc::new(root),
            result: checked.type_,
            worst_cost: checked.cost,
            variables: checked.variables.into(),
        })
    }

    /// Whether the expression names this variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.variables.iter().any(|name| &**name == variable)
    }

    /// The first of its object literals whose name is not that of the place where it stands: its name, and that. The place of
    /// the whole is given, if its name is known.
    #[must_use]
    pub fn misnamed(&self, place: Option<&str>) -> Option<(String, String)> {
        named::misnamed(&self.root, place)
    }

    /// Evaluates it.
    ///
    /// # Errors
    /// When a function fails, a key is missing, or the budget is spent.
    pub fn eval(&self, bindings: &dyn Bindings, budget: &mut Budget) -> Result<Value, EvalError> {
        eval::eval(&self.root, bindings, budget)
    }
}

/// A fault at a byte of the text.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    at: u32,
    text: String,
}

impl Fault {
    pub(crate) fn new(at: u32, text: impl Into<String>) -> Fault {
        Fault { at, text: text.into() }
    }

    /// The fault with its line and a mark under its column.
    fn render(&self, source: &str) -> CompileError {
        let mut at = (self.at as usize).min(source.len());
        while !source.is_char_boundary(at) {
            at -= 1;
        }
        let before = &source[..at];
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = source[start..at].chars().count();
        let shown = source[start..].lines().next().unwrap_or_default();
        let mark = ".".repeat(column) + "^";
        CompileError(format!("ERROR: <input>:{line}:{}: {}\n | {shown}\n | {mark}", column + 1, self.text))
    }
}
