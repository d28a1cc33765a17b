//! Words of somebody who is not trusted, such as a guest or whoever is in its container, as they are passed on to people.
//!
//! They reach statuses, events, logs and terminals. So they are one line, and not a long one, and nothing in them moves a
//! terminal's cursor.

/// Most characters of them, unless there is a reason for fewer.
pub const MOST_CHARS: usize = 1000;

/// The first characters of a text as one line. What would begin another line, or is for a terminal, is a blank.
#[must_use]
pub fn one_line(text: &str, most_chars: usize) -> String {
    text.chars().take(most_chars).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn words_are_one_short_line() {
        let check = |text: &str, wanted: &str| assert_eq!(one_line(text, 8), wanted, "{text:?}");
        check("", "");
        check("plain", "plain");
        check("a\nb\tc\r", "a b c ");
        check("\u{1b}[2Jx\u{9b}", " [2Jx ");
        // Characters are counted, and none is cut in two.
        check("äöüäöüäöü", "äöüäöüäö");
    }
}
