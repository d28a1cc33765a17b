//! Sets of fields as the text that is stored: asked and added to without being decoded.
//!
//! What is written here has no spaces and its keys are in order, so that a set and a text are gone
//! through side by side. Whatever has another form is [`Odd`], and is decoded.

use std::borrow::Cow;

use super::set::Set;

/// The text is not as it would have been written here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Odd;

/// Nothing that is stored nests deeper.
const MAX_DEPTH: usize = 128;

/// The element that says that a place is a member, beside what is below it.
const MEMBER: &str = ".";

/// Whether a text has a member of the set.
pub(super) fn meets(text: &str, set: &Set) -> Result<bool, Odd> {
    let mut reader = Reader::of(text);
    let found = reader.meets(set)?;
    if found { Ok(true) } else { reader.end().map(|()| false) }
}

/// Whether a text has all members of the set.
pub(super) fn holds(text: &str, set: &Set) -> Result<bool, Odd> {
    let mut reader = Reader::of(text);
    let found = reader.holds(set)?;
    if found { reader.end().map(|()| true) } else { Ok(false) }
}

/// The text with the members of the set added.
pub(super) fn add(text: &str, set: &Set) -> Result<String, Odd> {
    let mut reader = Reader::of(text);
    let mut out = String::with_capacity(text.len() + 256);
    reader.add(set, true, &mut out)?;
    reader.end()?;
    Ok(out)
}

/// The set that a text stands for.
pub(super) fn read(text: &str) -> Result<Set, Odd> {
    let mut reader = Reader::of(text);
    let mut set = reader.set()?;
    // The root is what is owned in, and not owned itself.
    set.member = false;
    reader.end()?;
    Ok(set)
}

/// Writes a set.
pub(super) fn write(set: &Set, out: &mut String) {
    out.push('{');
    if set.member && !set.children.is_empty() {
        out.push_str("\".\":{}");
    }
    let mut rest = set.member && !set.children.is_empty();
    for (element, below) in &set.children {
        put(element, below, &mut rest, out);
    }
    out.push('}');
}

/// Writes a child. `rest` is whether another came before.
fn put(element: &str, below: &Set, rest: &mut bool, out: &mut String) {
    key(element, rest, out);
    write(below, out);
}

fn key(element: &str, rest: &mut bool, out: &mut String) {
    if std::mem::replace(rest, true) {
        out.push(',');
    }
    string(element, out);
    out.push(':');
}

/// Writes a string of JSON.
pub(super) fn string(text: &str, out: &mut String) {
    if text.bytes().any(|byte| byte < 0x20 || matches!(byte, b'"' | b'\\')) {
        out.push_str(&serde_json::Value::from(text).to_string());
    } else {
        out.push('"');
        out.push_str(text);
        out.push('"');
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl<'t> Reader<'t> {
    fn of(text: &'t str) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> Result<(), Odd> {
        if self.peek() != Some(byte) {
            return Err(Odd);
        }
        self.at += 1;
        Ok(())
    }

    fn end(&self) -> Result<(), Odd> {
        if self.at == self.text.len() { Ok(()) } else { Err(Odd) }
    }

    fn open(&mut self) -> Result<(), Odd> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err(Odd) } else { self.take(b'{') }
    }

    /// The next key of an object, or none at its end.
    fn key(&mut self, first: &mut bool) -> Result<Option<Cow<'t, str>>, Odd> {
        if self.peek() == Some(b'}') {
            self.at += 1;
            self.depth -= 1;
            return Ok(None);
        }
        if !std::mem::take(first) {
            self.take(b',')?;
        }
        let key = self.string()?;
        self.take(b':')?;
        Ok(Some(key))
    }

    fn string(&mut self) -> Result<Cow<'t, str>, Odd> {
        self.take(b'"')?;
        let (from, mut escaped) = (self.at, false);
        loop {
            match self.peek().ok_or(Odd)? {
                b'"' => break,
                b'\\' => {
                    escaped = true;
                    self.at += 2;
                }
                _ => self.at += 1,
            }
        }
        let raw = self.text.get(from..self.at).ok_or(Odd)?;
        self.at += 1;
        if !escaped {
            return Ok(Cow::Borrowed(raw));
        }
        let whole = self.text.get(from - 1..self.at).ok_or(Odd)?;
        serde_json::from_str(whole).map(Cow::Owned).map_err(|_| Odd)
    }

    /// Goes over a value.
    fn skip(&mut self) -> Result<&'t str, Odd> {
        let (from, mut open) = (self.at, 0_usize);
        loop {
            match self.peek().ok_or(Odd)? {
                b'{' => {
                    open += 1;
                    self.at += 1;
                }
                b'}' => {
                    open = open.checked_sub(1).ok_or(Odd)?;
                    self.at += 1;
                    if open == 0 {
                        return self.text.get(from..self.at).ok_or(Odd);
                    }
                }
                b'"' => {
                    self.at += 1;
                    loop {
                        match self.peek().ok_or(Odd)? {
                            b'"' => break,
                            b'\\' => self.at += 2,
                            _ => self.at += 1,
                        }
                    }
                    self.at += 1;
                }
                b',' | b':' if open > 0 => self.at += 1,
                _ => return Err(Odd),
            }
        }
    }

    /// Whether it meets the set; where it does, the rest is left unread.
    fn meets(&mut self, set: &Set) -> Result<bool, Odd> {
        self.open()?;
        let mut first = true;
        let mut is_leaf = true;
        while let Some(key) = self.key(&mut first)? {
            is_leaf = false;
            if key == MEMBER {
                if set.member {
                    return Ok(true);
                }
                self.skip()?;
                continue;
            }
            match set.children.get(&*key) {
                Some(child) if self.meets(child)? => return Ok(true),
                Some(_) => {}
                None => {
                    self.skip()?;
                }
            }
        }
        Ok(is_leaf && set.member)
    }

    /// Whether it has all of the set; where it does not, the rest is left unread.
    fn holds(&mut self, set: &Set) -> Result<bool, Odd> {
        self.open()?;
        let (mut first, mut is_leaf, mut is_member, mut found) = (true, true, false, 0);
        while let Some(key) = self.key(&mut first)? {
            is_leaf = false;
            if key == MEMBER {
                is_member = true;
                self.skip()?;
                continue;
            }
            match set.children.get(&*key) {
                Some(child) => {
                    if !self.holds(child)? {
                        return Ok(false);
                    }
                    found += 1;
                }
                None => {
                    self.skip()?;
                }
            }
        }
        Ok(found == set.children.len() && (!set.member || is_leaf || is_member))
    }

    fn add(&mut self, set: &Set, is_root: bool, out: &mut String) -> Result<(), Odd> {
        let is_leaf = self.text.get(self.at..).is_some_and(|rest| rest.starts_with("{}"));
        self.open()?;
        out.push('{');
        let (mut first, mut rest) = (true, false);
        let mut children = set.children.iter().peekable();
        // The root is never a member; an empty one owns nothing.
        let mut member = !is_root && (set.member || is_leaf) && !(is_leaf && set.children.is_empty());
        let mut last: Option<Cow<'t, str>> = None;
        while let Some(found) = self.key(&mut first)? {
            if last.as_ref().is_some_and(|last| *last >= found) {
                return Err(Odd);
            }
            if found == MEMBER {
                self.skip()?;
                member = true;
                last = Some(found);
                continue;
            }
            if std::mem::take(&mut member) {
                key(MEMBER, &mut rest, out);
                out.push_str("{}");
            }
            while let Some((element, below)) = children.next_if(|(element, _)| element.as_str() < &*found) {
                put(element, below, &mut rest, out);
            }
            key(&found, &mut rest, out);
            match children.next_if(|(element, _)| element.as_str() == &*found) {
                Some((_, below)) => self.add(below, false, out)?,
                None => out.push_str(self.skip()?),
            }
            last = Some(found);
        }
        if member {
            key(MEMBER, &mut rest, out);
            out.push_str("{}");
        }
        for (element, below) in children {
            put(element, below, &mut rest, out);
        }
        out.push('}');
        Ok(())
    }

    fn set(&mut self) -> Result<Set, Odd> {
        self.open()?;
        let (mut first, mut set) = (true, Set::default());
        let mut is_leaf = true;
        while let Some(key) = self.key(&mut first)? {
            is_leaf = false;
            if key == MEMBER {
                self.skip()?;
                set.member = true;
            } else {
                let below = self.set()?;
                set.children.insert(key.into_owned(), below);
            }
        }
        set.member |= is_leaf;
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sets() -> impl Strategy<Value = Set> {
        let element = prop_oneof![
            "[a-c]{1,2}".prop_map(|name| format!("f:{name}")),
            "[a-b\"\\\\é]{1,2}".prop_map(|name| super::super::set::item(name.into())),
            (0..3_u8).prop_map(|n| format!("k:{{\"name\":\"{n}\"}}")),
        ];
        let leaf = Just(Set::leaf());
        let tree = leaf.prop_recursive(4, 24, 4, move |inner| {
            (any::<bool>(), prop::collection::btree_map(element.clone(), inner, 1..4))
                .prop_map(|(member, children)| Set { member, children })
        });
        prop::collection::btree_map("f:[a-c]", tree, 0..4).prop_map(|children| Set { member: false, children })
    }

    fn text(set: &Set) -> String {
        let mut out = String::new();
        write(set, &mut out);
        out
    }

    proptest! {
        #[test]
        fn texts_are_what_sets_are(a in sets(), b in sets()) {
            let (written, json) = (text(&a), a.clone().into_json());
            prop_assert_eq!(&written, &json.to_string());
            prop_assert_eq!(read(&written), Ok(a.clone()));
            prop_assert_eq!(meets(&written, &b), Ok(!a.intersection(&b).is_empty()));
            let mut missing = b.clone();
            missing.subtract(&a);
            prop_assert_eq!(holds(&written, &b), Ok(missing.is_empty()));
            let mut both = a.clone();
            both.add(b.clone());
            prop_assert_eq!(add(&written, &b), Ok(text(&both)));
        }
    }

    #[test]
    fn other_forms_are_odd() {
        let set = Set { member: false, children: [("f:b".to_owned(), Set::leaf())].into() };
        for odd in
            ["", "[]", "{", "{\"f:a\":1}", "{ \"f:a\":{}}", "{\"f:c\":{},\"f:a\":{}}", "{\"f:a\":{}}x", "{\"f:\\"]
        {
            assert_eq!(add(odd, &set), Err(Odd), "{odd}");
        }
        let deep = format!("{}{}", "{\"f:b\":".repeat(1000), "}".repeat(1000));
        assert_eq!(read(&deep), Err(Odd));
    }
}
