//! A few texts by their names, in little memory: what readers keep of each revision of each object is kept very often.

/// Texts by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Texts {
    /// Names and texts in turn, one behind the other.
    all: Box<str>,
    /// Where each of them ends.
    ends: Box<[u32]>,
}

impl Texts {
    /// The text of that name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(own, _)| *own == name).map(|(_, text)| text)
    }

    /// Names and their texts, in the order in which they came.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut begin = 0;
        let mut next = move |end: u32| {
            let end = usize::try_from(end).unwrap_or(usize::MAX);
            self.all.get(std::mem::replace(&mut begin, end)..end).unwrap_or_default()
        };
        self.ends.as_chunks::<2>().0.iter().map(move |[name, text]| (next(*name), next(*text)))
    }
}

impl<N: AsRef<str>, T: AsRef<str>> FromIterator<(N, T)> for Texts {
    fn from_iter<I: IntoIterator<Item = (N, T)>>(pairs: I) -> Self {
        let (mut all, mut ends) = (String::new(), Vec::new());
        for (name, text) in pairs {
            for part in [name.as_ref(), text.as_ref()] {
                all.push_str(part);
                // Objects are some megabytes at the most.
                ends.push(u32::try_from(all.len()).unwrap_or(u32::MAX));
            }
        }
        Self { all: all.into(), ends: ends.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_a_map(pairs: BTreeMap<String, String>, name: String) {
            let texts: Texts = pairs.iter().collect();
            prop_assert!(texts.iter().eq(pairs.iter().map(|(name, text)| (name.as_str(), text.as_str()))));
            for name in pairs.keys().chain([&name]) {
                prop_assert_eq!(texts.get(name), pairs.get(name).map(String::as_str));
            }
        }
    }
}
