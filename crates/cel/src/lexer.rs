//! From text to tokens.

use crate::Fault;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Ident(String),
    /// Between backticks: a field name that is no identifier.
    Quoted(String),
    /// Without its sign.
    Int(u64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    Op(&'static str),
    End,
}

/// Longest first.
const OPERATORS: [&str; 26] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "!", "?", ":", "(", ")", "[", "]", "{", "}",
    ".", ",", "=", "|",
];

/// All tokens with the byte that they start at; the last one is the end.
pub(crate) fn tokens(source: &str) -> Result<Vec<(u32, Token)>, Fault> {
    let mut lexer = Lexer { source, at: 0 };
    let mut found = Vec::new();
    loop {
        lexer.skip_blank();
        let at = lexer.at as u32;
        let token = lexer.next()?;
        let ended = token == Token::End;
        found.push((at, token));
        if ended {
            return Ok(found);
        }
    }
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn fault(&self, text: impl Into<String>) -> Fault {
        Fault::new(self.at as u32, format!("Syntax error: {}", text.into()))
    }

    fn skip_blank(&mut self) {
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n', '\u{c}']).len();
            self.at += blank;
            if !self.rest().starts_with("//") {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    fn next(&mut self) -> Result<Token, Fault> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok(Token::End) };
        if let Some(token) = self.text()? {
            return Ok(token);
        }
        if first.is_ascii_digit() || (first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit())) {
            return self.number();
        }
        if first == '`' {
            let inner = &rest[1..];
            let end = inner.find('`').ok_or_else(|| self.fault("unterminated quoted identifier"))?;
            let name = inner[..end].to_owned();
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | ' ');
            if name.is_empty() || !name.chars().all(fits) {
                return Err(self.fault(format!("invalid quoted identifier '{name}'")));
            }
            self.at += end + 2;
            return Ok(Token::Quoted(name));
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
            let name = rest[..end].to_owned();
            self.at += end;
            return Ok(Token::Ident(name));
        }
        match OPERATORS.iter().find(|op| rest.starts_with(**op)) {
            Some(op) => {
                self.at += op.len();
                Ok(Token::Op(op))
            }
            None => Err(self.fault(format!("token recognition error at: '{first}'"))),
        }
    }

    fn number(&mut self) -> Result<Token, Fault> {
        let rest = self.rest();
        if let Some(hex) = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X")) {
            let end = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
            let value = u64::from_str_radix(&hex[..end], 16).map_err(|_| self.fault("invalid int literal"))?;
            let unsigned = hex[end..].starts_with(['u', 'U']);
            self.at += 2 + end + usize::from(unsigned);
            return Ok(if unsigned { Token::Uint(value) } else { Token::Int(value) });
        }
        let bytes = rest.as_bytes();
        let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
        let mut end = digits(0);
        let mut whole = true;
        if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
            whole = false;
            end += 1;
            end += digits(end);
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            let exponent = digits((end + 1 + sign).min(bytes.len()));
            if exponent > 0 {
                whole = false;
                end += 1 + sign + exponent;
            }
        }
        let text = &rest[..end];
        let unsigned = whole && rest[end..].starts_with(['u', 'U']);
        let token = if whole {
            let value = text.parse().map_err(|_| self.fault("invalid int literal"))?;
            if unsigned { Token::Uint(value) } else { Token::Int(value) }
        } else {
            Token::Double(text.parse().map_err(|_| self.fault("invalid double literal"))?)
        };
        self.at += end + usize::from(unsigned);
        Ok(token)
    }

    /// A text or bytes, if one starts here.
    fn text(&mut self) -> Result<Option<Token>, Fault> {
        let rest = self.rest();
        let (mut raw, mut bytes, mut prefix) = (false, false, 0);
        for c in rest.chars().take(2) {
            match c {
                'r' | 'R' if !raw => raw = true,
                'b' | 'B' if !bytes => bytes = true,
                _ => break,
            }
            prefix += 1;
        }
        let body = &rest[prefix..];
        let Some(quote) = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| body.starts_with(quote)) else {
            return Ok(None);
        };
        let body = &body[quote.len()..];
        let mut out: Vec<u8> = Vec::new();
        let mut chars = body.char_indices();
        loop {
            let Some((at, c)) = chars.next() else { return Err(self.fault("unterminated string literal")) };
            if body[at..].starts_with(quote) {
                self.at += prefix + quote.len() + at + quote.len();
                break;
            }
            if c == '\n' && quote.len() == 1 {
                return Err(self.fault("unterminated string literal"));
            }
            if c != '\\' || raw {
                push(&mut out, c);
                continue;
            }
            let Some((at, escape)) = chars.next() else { return Err(self.fault("unterminated string literal")) };
            let length = match escape {
                'x' | 'X' => 2,
                'u' => 4,
                'U' => 8,
                '0'..='3' => 3,
                _ => 0,
            };
            if length == 0 {
                let plain = match escape {
                    'a' => '\u{7}',
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    'v' => '\u{b}',
                    '\\' | '?' | '"' | '\'' | '`' => escape,
                    _ => return Err(self.fault(format!("invalid escape sequence '\\{escape}'"))),
                };
                push(&mut out, plain);
                continue;
            }
            let octal = escape.is_ascii_digit();
            let start = if octal { at } else { at + 1 };
            let digits = body.get(start..start + length).ok_or_else(|| self.fault("invalid escape sequence"))?;
            let code = u32::from_str_radix(digits, if octal { 8 } else { 16 })
                .map_err(|_| self.fault("invalid escape sequence"))?;
            for _ in 0..(if octal { length - 1 } else { length }) {
                chars.next();
            }
            match (bytes, length) {
                (true, 2 | 3) => out.push(u8::try_from(code).map_err(|_| self.fault("invalid escape sequence"))?),
                (true, _) => return Err(self.fault("unicode escapes are not allowed in bytes")),
                _ => push(&mut out, char::from_u32(code).ok_or_else(|| self.fault("invalid unicode code point"))?),
            }
        }
        if bytes {
            return Ok(Some(Token::Bytes(out)));
        }
        let text = String::from_utf8(out).map_err(|_| self.fault("invalid string literal"))?;
        Ok(Some(Token::Text(text)))
    }
}

fn push(out: &mut Vec<u8>, c: char) {
    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}
