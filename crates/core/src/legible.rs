//! Text that others wrote, as a person may read it. Keys, reasons and bodies come from callers: a control character could move
//! the cursor of a terminal, a line separator could begin a line that seems to be ours, and a bidirectional mark could show an
//! amount backwards.

use std::borrow::Cow;
use std::fmt::Write;

/// Returns the text on one line: every character that is not visible, or changes how others are shown, is written as an escape.
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, is_treacherous)
}

/// Returns the text on as many lines as it has, with the same escapes; line feeds and tabs stay.
pub fn block(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n' && c != '\t' && is_treacherous(c))
}

/// Returns the text on one line with addresses that no mail or chat program turns into a link: `http[:]//evil.example`.
pub fn unlinked(text: &str) -> String {
    let text = line(text).replace("://", "[:]//").replace('@', "[@]");
    let mut unlinked = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    let mut before = ' ';
    while let Some(c) = letters.next() {
        // Bare names of hosts become links, too.
        match c == '.' && before.is_alphanumeric() && letters.peek().is_some_and(|next| next.is_alphabetic())
        {
            true => unlinked.push_str("[.]"),
            false => unlinked.push(c),
        }
        before = c;
    }
    unlinked
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' if is_escaped(c) => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' if is_escaped(c) => shown.push_str("\\t"),
            c if is_escaped(c) => {
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(c));
            }
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Returns whether a character is a control character, a line separator, invisible, or changes the direction of what follows.
fn is_treacherous(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s41_what_others_wrote_cannot_change_how_it_is_shown() {
        for (text, on_a_line, in_a_block) in [
            ("order-12", "order-12", "order-12"),
            ("Zürich 東京 😀", "Zürich 東京 😀", "Zürich 東京 😀"),
            ("a\u{1b}[2Jb", "a\\u{1b}[2Jb", "a\\u{1b}[2Jb"),
            ("a\r\nb\tc", "a\\r\\nb\\tc", "a\\r\nb\tc"),
            ("100\u{202e}001", "100\\u{202e}001", "100\\u{202e}001"),
            ("a\u{2028}b\u{85}c", "a\\u{2028}b\\u{85}c", "a\\u{2028}b\\u{85}c"),
            ("pay\u{200b}pal", "pay\\u{200b}pal", "pay\\u{200b}pal"),
        ] {
            assert_eq!((&*line(text), &*block(text)), (on_a_line, in_a_block), "{text:?}");
        }
        assert_eq!(unlinked("see http://evil.example, ann@evil"), "see http[:]//evil[.]example, ann[@]evil");
        assert_eq!(unlinked("after 1.5 s. See evil.example/a"), "after 1.5 s. See evil[.]example/a");
    }
}
