//! Paths as a destination could read them that is less strict than routes are (S46): without regard to letter case, decoded more
//! than once, without empty steps, without blanks and dots at the ends of steps.

use std::borrow::Cow;

use crate::http::request::percent_decoded;

/// How often a path is decoded at most. No server is known to decode more often.
const DECODES_MAX: usize = 4;

/// Returns the steps of a path as the least strict destination could read them.
pub(crate) fn loose_path(path: &str) -> Vec<String> {
    let mut text = Cow::Borrowed(path);
    for _ in 0..DECODES_MAX {
        let decoded = percent_decoded(&text);
        if decoded == text {
            break;
        }
        text = Cow::Owned(decoded.into_owned());
    }
    // A query or a fragment may begin where nobody wrote one, and a NUL ends the text for some.
    let text = text.split(['?', '#', '\0']).next().unwrap_or_default();
    let mut steps: Vec<String> = Vec::new();
    for step in text.split(['/', '\\']) {
        let step = step.split(';').next().unwrap_or_default().trim_matches(is_trimmed);
        match step {
            "" | "." => {}
            ".." => drop(steps.pop()),
            step => {
                let step = step.trim_end_matches(|c| c == '.' || is_trimmed(c));
                if !step.is_empty() {
                    steps.push(step.chars().flat_map(folded).collect());
                }
            }
        }
    }
    steps
}

/// Whether a step of a path has nothing in it but what many trim.
pub(super) fn is_blank(step: &str) -> bool {
    !step.is_empty() && percent_decoded(step).trim_matches(is_trimmed).is_empty()
}

/// What many trim. A `+` is a blank to servers that decode paths like forms.
fn is_trimmed(c: char) -> bool {
    c.is_whitespace() || c.is_control() || c == '+'
}

/// Letters that some servers take for the same one.
fn folded(c: char) -> impl Iterator<Item = char> {
    // Full-width letters are ASCII to servers that look for the best fit.
    let narrow = match c {
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(c as u32 - 0xfee0).unwrap_or(c),
        '+' => ' ',
        c => c,
    };
    narrow.to_uppercase().flat_map(char::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s46_a_path_is_known_however_it_is_written() {
        for written in [
            "/v1/refunds",
            "/V1/REFUNDS",
            "/v1/refunds/",
            "/v1//refunds",
            "/v1/./refunds",
            "/v1/x/../refunds",
            "/v1/x/%252e%252e/refunds",
            "/v1/refunds%20",
            "/v1/%20refunds",
            "/v1/refunds+",
            "/v1/refunds%09%0a",
            "/v1/refunds.",
            "/v1/refunds%2e%20",
            "/v1/refunds%00.json",
            "/v1/refunds%2500",
            "/v1%2Frefunds",
            "/v1%252frefunds",
            "/v1%5Crefunds",
            "/v1/refunds%3Bx=1",
            "/v1/refunds%3Fx=1",
            "/v1/refunds%23x",
            "/v1/%72efunds",
            "/v1/%2572efunds",
            "/v1/refund%C5%BF",
            "/v1/%EF%BD%92efunds",
        ] {
            assert_eq!(loose_path(written), ["v1", "refunds"], "{written}");
        }
        for other in ["/v1/refund", "/v1/refunds.json", "/v1/refunds/1", "/v2/refunds", "/refunds"] {
            assert_ne!(loose_path(other), ["v1", "refunds"], "{other}");
        }
        assert!(loose_path("/").is_empty());
        assert!(is_blank("%20") && is_blank("%00") && is_blank("+") && !is_blank("a%20") && !is_blank(""));
    }
}
