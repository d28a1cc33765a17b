//! Tokens from a file, for bootstrapping and for tools that cannot do better.
//!
//! One line each: `token,user,uid[,"group1,group2"]` (upstream's `--token-auth-file`).

use crate::caller::Caller;
use crate::secret::Secret;

/// Tokens and whose they are.
#[derive(Clone, Debug, Default)]
pub struct StaticTokens(Vec<(Secret, Caller)>);

/// Why a token file is refused. The line's content is not shown: it holds secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StaticTokensError {
    /// A line has the wrong form.
    #[error("line {line} of the token file: {problem}")]
    Line {
        /// The line's number, from 1.
        line: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl StaticTokens {
    /// Reads a token file's text. Empty lines and lines that start with `#` are skipped.
    ///
    /// # Errors
    /// [`StaticTokensError`] for the first line that is malformed or repeats a token.
    pub fn parse(text: &str) -> Result<Self, StaticTokensError> {
        let mut tokens: Vec<(Secret, Caller)> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let fail = |problem| StaticTokensError::Line { line: index + 1, problem };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let fields = split_csv(line).ok_or_else(|| fail("a quote is not closed"))?;
            let (token, user, uid, groups) = match fields.as_slice() {
                [token, user, uid] => (token, user, uid, ""),
                [token, user, uid, groups, ..] => (token, user, uid, groups.as_str()),
                _ => return Err(fail("expected token,user,uid[,\"groups\"]")),
            };
            if token.is_empty() || user.is_empty() {
                return Err(fail("token and user must not be empty"));
            }
            let token = Secret::new(token.clone());
            if tokens.iter().any(|(known, _)| *known == token) {
                return Err(fail("the token is there twice"));
            }
            let groups = groups.split(',').map(str::trim).filter(|g| !g.is_empty());
            let caller = Caller {
                user: user.clone(),
                uid: uid.clone(),
                groups: groups.map(str::to_owned).collect(),
                ..Caller::default()
            };
            tokens.push((token, caller));
        }
        Ok(Self(tokens))
    }

    /// Whose token this is.
    pub(super) fn find(&self, token: &Secret) -> Option<&Caller> {
        self.0.iter().find(|(known, _)| known == token).map(|(_, caller)| caller)
    }
}

/// The fields of a CSV line; none when a quote is left open.
fn split_csv(line: &str) -> Option<Vec<String>> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let field = fields.last_mut()?;
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            other => field.push(other),
        }
    }
    (!quoted).then(|| fields.into_iter().map(|f| f.trim().to_owned()).collect())
}
