//! From tokens to an expression. Macros are recognized here, as in every CEL parser.
//!
//! Depth is bounded twice: how deep the text nests, and how deep the tree of what was read is (a long chain
//! of `a + b + c` is a deep tree of shallow text). Everything after this recurses over the tree.

use std::sync::Arc;

use crate::Fault;
use crate::ast::{Comprehension, Expr, Kind, Macro};
use crate::lexer::{Token, tokens};
use crate::value::Value;

/// How deep a text may nest.
const MAX_NESTING: usize = 50;
/// How long a chain of operators or selections may be.
const MAX_CHAIN: usize = 120;
/// How deep a tree may be, chains in nested texts taken together.
const MAX_DEPTH: usize = 160;

/// Words that are kept for later versions of the language.
pub(crate) const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Binary operators by precedence, weakest first; `&&` and `||` are apart, because they take many.
const BINARY: [&[&str]; 3] = [&["==", "!=", "<", "<=", ">", ">=", "in"], &["+", "-"], &["*", "/", "%"]];

/// Reads a text.
pub(crate) fn parse(source: &str) -> Result<Expr, Fault> {
    let mut parser = Parser { tokens: tokens(source)?, next: 0, nesting: 0 };
    let (expr, _) = parser.expr()?;
    match parser.peek() {
        Token::End => Ok(expr),
        _ => Err(parser.unexpected("expecting <EOF>")),
    }
}

/// An expression and the depth of its tree.
type Read = Result<(Expr, usize), Fault>;

struct Parser {
    tokens: Vec<(u32, Token)>,
    next: usize,
    nesting: usize,
}

fn build(at: u32, kind: Kind, depth: usize) -> Read {
    if depth >= MAX_DEPTH {
        return Err(Fault::new(at, format!("expression recursion limit exceeded: {MAX_DEPTH}")));
    }
    Ok((Expr { at, kind }, depth + 1))
}

fn call(at: u32, function: &str, method: bool, args: Vec<Expr>, depth: usize) -> Read {
    build(at, Kind::Call { function: function.into(), method, args, regex: None }, depth)
}

impl Parser {
    fn peek(&self) -> &Token {
        // The last token is the end, and nothing takes that.
        &self.tokens[self.next.min(self.tokens.len() - 1)].1
    }

    fn at(&self) -> u32 {
        self.tokens[self.next.min(self.tokens.len() - 1)].0
    }

    fn take(&mut self) -> Token {
        let token = self.peek().clone();
        if token != Token::End {
            self.next += 1;
        }
        token
    }

    fn eat(&mut self, op: &str) -> bool {
        let found = matches!(self.peek(), Token::Op(found) if *found == op);
        if found {
            self.next += 1;
        }
        found
    }

    fn need(&mut self, op: &str) -> Result<(), Fault> {
        if self.eat(op) { Ok(()) } else { Err(self.unexpected(&format!("expecting '{op}'"))) }
    }

    fn unexpected(&self, wanted: &str) -> Fault {
        let shown = match self.peek() {
            Token::End => "<EOF>".to_owned(),
            Token::Op(op) => (*op).to_owned(),
            Token::Ident(name) | Token::Quoted(name) => name.clone(),
            Token::Int(value) | Token::Uint(value) => value.to_string(),
            Token::Double(value) => value.to_string(),
            Token::Text(text) => text.clone(),
            Token::Bytes(_) => "bytes".to_owned(),
        };
        Fault::new(self.at(), format!("Syntax error: mismatched input '{shown}' {wanted}"))
    }

    fn expr(&mut self) -> Read {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(Fault::new(self.at(), format!("expression recursion limit exceeded: {MAX_NESTING}")));
        }
        let result = self.ternary();
        self.nesting -= 1;
        result
    }

    fn ternary(&mut self) -> Read {
        let (condition, d0) = self.junction("||")?;
        let at = self.at();
        if !self.eat("?") {
            return Ok((condition, d0));
        }
        let (yes, d1) = self.junction("||")?;
        self.need(":")?;
        let (no, d2) = self.expr()?;
        build(at, Kind::Ternary(Box::new([condition, yes, no])), d0.max(d1).max(d2))
    }

    /// A chain of `||`, or of `&&`.
    fn junction(&mut self, op: &'static str) -> Read {
        let next = |parser: &mut Self| if op == "||" { parser.junction("&&") } else { parser.binary(0) };
        let (first, mut depth) = next(self)?;
        let at = self.at();
        let mut all = vec![first];
        while self.eat(op) {
            let (other, d) = next(self)?;
            depth = depth.max(d);
            all.push(other);
        }
        if all.len() == 1 {
            return Ok((all.remove(0), depth));
        }
        build(at, if op == "||" { Kind::Or(all) } else { Kind::And(all) }, depth)
    }

    fn binary(&mut self, level: usize) -> Read {
        let Some(operators) = BINARY.get(level) else { return self.unary() };
        let (mut left, mut depth) = self.binary(level + 1)?;
        for _ in 0..MAX_CHAIN {
            let op = match self.peek() {
                Token::Op(op) => operators.iter().find(|known| *known == op),
                Token::Ident(name) if name == "in" => operators.iter().find(|known| **known == "in"),
                _ => None,
            };
            let Some(op) = op else { return Ok((left, depth)) };
            let at = self.at();
            self.take();
            let (right, d) = self.binary(level + 1)?;
            (left, depth) = call(at, op, false, vec![left, right], depth.max(d))?;
        }
        Err(Fault::new(self.at(), format!("expression recursion limit exceeded: {MAX_CHAIN}")))
    }

    fn unary(&mut self) -> Read {
        let at = self.at();
        for (op, function) in [("!", "!"), ("-", "neg")] {
            let mut count = 0;
            while self.eat(op) {
                count += 1;
            }
            if count == 0 {
                continue;
            }
            if function == "neg" && count % 2 == 1 {
                // A sign belongs to its number, so that the least integer can be written.
                let literal = match self.peek() {
                    Token::Int(value) => Some(0_i64.checked_sub_unsigned(*value).map(Value::Int)),
                    Token::Double(value) => Some(Some(Value::Double(-value))),
                    _ => None,
                };
                if let Some(value) = literal {
                    self.take();
                    let value = value.ok_or_else(|| Fault::new(at, "Syntax error: invalid int literal"))?;
                    let read = build(at, Kind::Literal(value), 0)?;
                    return self.members(read);
                }
            }
            let (operand, depth) = self.unary_operand()?;
            return if count % 2 == 0 { Ok((operand, depth)) } else { call(at, function, false, vec![operand], depth) };
        }
        self.unary_operand()
    }

    fn unary_operand(&mut self) -> Read {
        let primary = self.primary()?;
        self.members(primary)
    }

    fn members(&mut self, (mut expr, mut depth): (Expr, usize)) -> Read {
        for _ in 0..MAX_CHAIN {
            let at = self.at();
            if self.eat(".") {
                let optional = self.eat("?");
                let before = self.next;
                let field = match self.take() {
                    Token::Ident(name) => name,
                    Token::Quoted(name) => {
                        let field = crate::types::escape(&name).unwrap_or(name);
                        let select =
                            Kind::Select { operand: Box::new(expr), field: field.into(), optional, test: false };
                        (expr, depth) = build(at, select, depth)?;
                        continue;
                    }
                    _ => {
                        self.next = before;
                        return Err(self.unexpected("expecting IDENTIFIER"));
                    }
                };
                if !optional && matches!(self.peek(), Token::Op("(")) {
                    let at = self.at();
                    self.next += 1;
                    let (args, d) = self.arguments()?;
                    (expr, depth) = method(at, &field, expr, args, depth.max(d))?;
                    continue;
                }
                let select = Kind::Select { operand: Box::new(expr), field: field.into(), optional, test: false };
                (expr, depth) = build(at, select, depth)?;
            } else if self.eat("[") {
                let optional = self.eat("?");
                let (index, d) = self.expr()?;
                self.need("]")?;
                let kind = Kind::Index { operand: Box::new(expr), index: Box::new(index), optional };
                (expr, depth) = build(at, kind, depth.max(d))?;
            } else if matches!(self.peek(), Token::Op("{"))
                && let Some(name) = qualified(&expr)
            {
                self.next += 1;
                (expr, depth) = self.fields(at, &name)?;
            } else {
                return Ok((expr, depth));
            }
        }
        Err(Fault::new(self.at(), format!("expression recursion limit exceeded: {MAX_CHAIN}")))
    }

    /// Arguments up to the closing parenthesis.
    fn arguments(&mut self) -> Result<(Vec<Expr>, usize), Fault> {
        let (mut args, mut depth) = (Vec::new(), 0);
        if self.eat(")") {
            return Ok((args, depth));
        }
        loop {
            let (arg, d) = self.expr()?;
            depth = depth.max(d);
            args.push(arg);
            if self.eat(")") {
                return Ok((args, depth));
            }
            self.need(",")?;
        }
    }

    fn fields(&mut self, at: u32, name: &str) -> Read {
        let (mut fields, mut depth) = (Vec::new(), 0);
        while !self.eat("}") {
            let optional = self.eat("?");
            let before = self.next;
            let field = match self.take() {
                Token::Ident(name) | Token::Quoted(name) => name,
                _ => {
                    self.next = before;
                    return Err(self.unexpected("expecting IDENTIFIER"));
                }
            };
            self.need(":")?;
            let (value, d) = self.expr()?;
            depth = depth.max(d);
            fields.push((optional, field.into(), value));
            if !self.eat(",") {
                self.need("}")?;
                break;
            }
        }
        build(at, Kind::Struct { name: name.into(), fields }, depth)
    }

    fn primary(&mut self) -> Read {
        let at = self.at();
        let leading_dot = self.eat(".");
        let literal = |value| build(at, Kind::Literal(value), 0);
        let before = self.next;
        match self.take() {
            Token::Int(value) => literal(Value::Int(
                i64::try_from(value).map_err(|_| Fault::new(at, "Syntax error: invalid int literal"))?,
            )),
            Token::Uint(value) => literal(Value::Uint(value)),
            Token::Double(value) => literal(Value::Double(value)),
            Token::Text(text) => literal(Value::from(text.as_str())),
            Token::Bytes(bytes) => literal(Value::Bytes(bytes.into())),
            Token::Op("(") if !leading_dot => {
                let inner = self.expr()?;
                self.need(")")?;
                Ok(inner)
            }
            Token::Op("[") if !leading_dot => {
                let (mut items, mut depth) = (Vec::new(), 0);
                while !self.eat("]") {
                    let optional = self.eat("?");
                    let (item, d) = self.expr()?;
                    depth = depth.max(d);
                    items.push((optional, item));
                    if !self.eat(",") {
                        self.need("]")?;
                        break;
                    }
                }
                build(at, Kind::List(items), depth)
            }
            Token::Op("{") if !leading_dot => {
                let (mut entries, mut depth) = (Vec::new(), 0);
                while !self.eat("}") {
                    let optional = self.eat("?");
                    let (key, d0) = self.expr()?;
                    self.need(":")?;
                    let (value, d1) = self.expr()?;
                    depth = depth.max(d0).max(d1);
                    entries.push((optional, key, value));
                    if !self.eat(",") {
                        self.need("}")?;
                        break;
                    }
                }
                build(at, Kind::Map(entries), depth)
            }
            Token::Ident(name) => match name.as_str() {
                "true" => literal(Value::Bool(true)),
                "false" => literal(Value::Bool(false)),
                "null" => literal(Value::Null),
                "in" => {
                    self.next = before;
                    Err(self.unexpected("expecting an expression"))
                }
                word if RESERVED.contains(&word) => {
                    Err(Fault::new(at, format!("Syntax error: reserved identifier: {word}")))
                }
                _ => {
                    let at_arguments = self.at();
                    if !self.eat("(") {
                        return build(at, Kind::Ident(name.into()), 0);
                    }
                    let (args, depth) = self.arguments()?;
                    global(at, at_arguments, &name, args, depth)
                }
            },
            _ => {
                self.next = before;
                Err(self.unexpected("expecting an expression"))
            }
        }
    }
}

/// The name that a chain of selections spells, for `a.B{…}`.
fn qualified(expr: &Expr) -> Option<String> {
    match &expr.kind {
        Kind::Ident(name) => Some(name.to_string()),
        Kind::Select { operand, field, optional: false, test: false } => {
            Some(format!("{}.{field}", qualified(operand)?))
        }
        _ => None,
    }
}

/// A call of a function by its name alone.
fn global(at: u32, at_arguments: u32, name: &str, mut args: Vec<Expr>, depth: usize) -> Read {
    if name != "has" || args.len() != 1 {
        return call(at_arguments, name, false, args, depth);
    }
    match args.remove(0).kind {
        Kind::Select { operand, field, optional: false, test: false } => {
            build(at, Kind::Select { operand, field, optional: false, test: true }, depth)
        }
        _ => Err(Fault::new(at_arguments, "invalid argument to has() macro")),
    }
}

/// A call of a method, or a macro in the form of one.
fn method(at: u32, name: &str, target: Expr, mut args: Vec<Expr>, depth: usize) -> Read {
    let is_cel = matches!(&target.kind, Kind::Ident(name) if &**name == "cel");
    let kind = match (name, args.len()) {
        ("all", 2 | 3) => Macro::All,
        ("exists", 2 | 3) => Macro::Exists,
        ("exists_one" | "existsOne", 2 | 3) => Macro::ExistsOne,
        ("filter", 2) => Macro::Filter,
        ("map", 2 | 3) => Macro::Map,
        ("transformList", 3 | 4) => Macro::TransformList,
        ("transformMap", 3 | 4) => Macro::TransformMap,
        ("transformMapEntry", 3 | 4) => Macro::TransformMapEntry,
        ("optMap", 2) => Macro::OptMap,
        ("optFlatMap", 2) => Macro::OptFlatMap,
        ("bind", 3) if is_cel => Macro::Bind,
        _ => {
            args.insert(0, target);
            return call(at, name, true, args, depth);
        }
    };
    let mut range = target;
    if kind == Macro::Bind {
        range = args.remove(1);
    }
    let two = match kind {
        Macro::All | Macro::Exists | Macro::ExistsOne => args.len() == 3,
        Macro::TransformList | Macro::TransformMap | Macro::TransformMapEntry => true,
        _ => false,
    };
    let mut variables: Vec<Arc<str>> = Vec::new();
    for _ in 0..(if two { 2 } else { 1 }) {
        let variable = args.remove(0);
        match variable.kind {
            Kind::Ident(name) => variables.push(name),
            _ => return Err(Fault::new(variable.at, "argument must be a simple name")),
        }
    }
    let Some(body) = args.pop() else { return Err(Fault::new(at, "a macro without an expression")) };
    let filter = args.pop();
    build(at, Kind::Comprehension(Box::new(Comprehension { kind, range, variables, filter, body })), depth)
}
