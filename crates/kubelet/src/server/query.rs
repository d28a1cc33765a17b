//! Query strings. What does not decode is refused, not replaced: a command runs as it was meant or not at all.

/// The decoded parameters of a query string, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads `a=b&c=d`. Fails where percent-encoding is broken or a value is not UTF-8.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        text.split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                Ok((decode(name)?, decode(value)?))
            })
            .collect::<Result<_, String>>()
            .map(Self)
    }

    /// The first value of a parameter.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The first value of a parameter that is not empty.
    pub(super) fn non_empty(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// All values of a parameter.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// Kubernetes' reading of a boolean parameter: there, and neither `0` nor `false` in whatever case (Python's client
    /// writes `False`).
    pub(super) fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }
}

/// What a text stands for in which others are escaped by `%`, and blanks by `+`.
pub(super) fn decode(text: &str) -> Result<String, String> {
    let broken = || format!("invalid query: {text:?} does not decode");
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16)).ok_or_else(broken);
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high * 16 + low).map_err(|_| broken())?
            }
            other => other,
        });
    }
    String::from_utf8(out).map_err(|_| broken())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads() {
        let text = "command=sh&command=-c&command=echo+a%2Bb%20%C3%A4&input=1&tty=0&x&follow=true";
        let query = Query::parse(text).expect("reads");
        assert_eq!(query.all("command").collect::<Vec<_>>(), ["sh", "-c", "echo a+b ä"]);
        assert_eq!(query.get("x"), Some(""));
        assert_eq!(query.non_empty("x"), None);
        assert!(query.flag("input") && query.flag("follow") && query.flag("x"));
        assert!(!query.flag("tty") && !query.flag("none"));
        assert_eq!(Query::parse(""), Ok(Query::default()));
    }

    #[test]
    fn refuses() {
        for text in ["a=%", "a=%4", "a=%zz", "a=%ff", "%=1"] {
            assert!(Query::parse(text).is_err(), "{text}");
        }
    }
}
