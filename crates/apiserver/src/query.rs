//! Query strings and percent-encoding.

/// The decoded parameters of a query string, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pairs: Vec<(String, String)>,
    text: String,
}

impl Query {
    /// Reads `a=b&c=d`; what is not valid UTF-8 after decoding is replaced.
    pub fn parse(text: &str) -> Query {
        let pairs = text
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                (decode(name, true), decode(value, true))
            })
            .collect();
        Query { pairs, text: text.to_owned() }
    }

    /// The query string as it came.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The first value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The first value of a parameter that is not empty.
    pub fn non_empty(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// All values of a parameter.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// Kubernetes' reading of a boolean parameter: there, and neither `0` nor `false` in whatever case (Python's client
    /// writes `False`).
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }
}

/// Undoes percent-encoding; `plus` makes `+` a space, as in query strings.
pub fn decode(text: &str, plus: bool) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = |i: usize| bytes.get(i).and_then(|b| char::from(*b).to_digit(16));
        match bytes[at] {
            b'%' => match (hex(at + 1), hex(at + 2)) {
                (Some(high), Some(low)) => {
                    out.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
                    at += 2;
                }
                _ => out.push(b'%'),
            },
            b'+' if plus => out.push(b' '),
            byte => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads() {
        let query = Query::parse("labelSelector=a%3Db%2Cc&watch=1&x=1+2&x=%zz&flag&no=False&not=0");
        assert_eq!(query.get("labelSelector"), Some("a=b,c"));
        assert!(query.flag("watch") && query.flag("flag") && !query.flag("none"));
        assert!(!query.flag("no") && !query.flag("not"));
        assert_eq!(query.all("x").collect::<Vec<_>>(), ["1 2", "%zz"]);
    }
}
