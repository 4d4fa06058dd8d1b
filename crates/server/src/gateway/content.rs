//! What a `Content-Type` says about a body: its type, its parameters, and the parts of a multipart body.

/// Longest boundary there may be (RFC 2046), and most parts that are told apart.
const BOUNDARY_BYTES_MAX: usize = 70;
const PARTS_MAX: usize = 10_000;

/// A `Content-Type`, read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ContentType {
    /// In small letters, without parameters.
    pub(crate) media_type: String,
    /// Names in small letters, sorted; values without quotes.
    pub(crate) parameters: Vec<(String, String)>,
}

impl ContentType {
    /// Reads one. `None`: two readers might read it differently.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (media_type, mut rest) = text.split_once(';').unwrap_or((text, ""));
        let mut parameters = Vec::new();
        while !rest.trim().is_empty() {
            let (name, after) = rest.split_once('=')?;
            let name = name.trim().to_ascii_lowercase();
            let is_word = |c: char| c.is_ascii_alphanumeric() || "-_.+*!#$%&'^`|~".contains(c);
            if name.is_empty() || !name.chars().all(is_word) {
                return None;
            }
            let value;
            (value, rest) = match after.trim_start().strip_prefix('"') {
                Some(quoted) => {
                    let (value, after) = quoted.split_once('"')?;
                    let after = after.trim_start();
                    (value, if after.is_empty() { "" } else { after.strip_prefix(';')? })
                }
                None => {
                    let (value, after) = after.split_once(';').unwrap_or((after, ""));
                    (value.trim(), after)
                }
            };
            if value.contains(['"', '\\']) || parameters.iter().any(|(other, _)| *other == name) {
                return None;
            }
            parameters.push((name, value.to_owned()));
        }
        parameters.sort();
        Some(Self { media_type: media_type.trim().to_ascii_lowercase(), parameters })
    }

    /// Returns a parameter, and takes it out.
    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.parameters.iter().position(|(own, _)| own == name)?;
        Some(self.parameters.remove(at).1)
    }
}

/// Returns the parts of a multipart body. `None`: it is not plainly one, and two readers might read different parts. The boundary
/// stands where parts begin and end and nowhere else, so that it can be left out without making two bodies equal.
pub(crate) fn parts<'a>(body: &'a [u8], boundary: &str) -> Option<Vec<&'a [u8]>> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&byte);
    if !(1..=BOUNDARY_BYTES_MAX).contains(&boundary.len())
        || !boundary.bytes().all(is_fit)
        || boundary.ends_with(' ')
    {
        return None;
    }
    let mut parts = Vec::new();
    let mut start = None;
    let mut is_over = false;
    for at in memchr::memmem::find_iter(body, boundary) {
        if is_over || parts.len() > PARTS_MAX {
            return None;
        }
        match start {
            None => (at == 2 && body.starts_with(b"--")).then_some(())?,
            Some(from) => {
                let part = body.get(from..at)?.strip_suffix(b"\r\n--")?;
                parts.push(part);
            }
        }
        let after = &body[at + boundary.len()..];
        match after {
            [b'\r', b'\n', ..] => start = Some(at + boundary.len() + 2),
            b"--" | b"--\r\n" => is_over = true,
            _ => return None,
        }
    }
    is_over.then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_type_is_read_or_it_is_not_plain() {
        let read = |text: &str| {
            let read = ContentType::parse(text)?;
            let parameters: Vec<String> =
                read.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
            Some(format!("{} {}", read.media_type, parameters.join(" ")))
        };
        for (text, expected) in [
            ("Application/JSON", Some("application/json ")),
            ("text/plain; Charset=UTF-8 ;a=b", Some("text/plain a=b charset=UTF-8")),
            ("multipart/form-data; boundary=\"a;b\"; x=1", Some("multipart/form-data boundary=a;b x=1")),
            ("a/b;", Some("a/b ")),
            ("a/b; x=\"1", None),
            ("a/b; x=1; X=2", None),
            ("a/b; x=\"1\"2", None),
            ("a/b; x=\"1\\\"\"", None),
            ("a/b; =1", None),
            ("a/b; x", None),
        ] {
            assert_eq!(read(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn s4_a_multipart_body_is_its_parts_or_it_is_not_plain() {
        let check = |body: &str, boundary: &str, expected: Option<&[&str]>| {
            let found = parts(body.as_bytes(), boundary);
            let expected = expected.map(|parts| parts.iter().map(|part| part.as_bytes()).collect::<Vec<_>>());
            assert_eq!(found, expected, "{body:?} {boundary:?}");
        };
        check("--b\r\nx\r\n--b\r\ny\r\n--b--\r\n", "b", Some(&["x", "y"]));
        check("--b\r\n\r\n--b--", "b", Some(&[""]));
        for (body, boundary) in [
            ("--0\r\n1000\r\n--0--", "0"),
            ("--b\r\nabc\r\n--b--", "b"),
            ("--b\r\nx\n--b\ny\r\n--b--", "b"),
            ("--b\r\nx\r\n--b", "b"),
            ("--b\r\nx\r\n--b--\r\n--b\r\ny\r\n--b--", "b"),
            ("before\r\n--b\r\nx\r\n--b--", "b"),
            ("--b\r\nx\r\n--b--after", "b"),
            ("--b\r\n--b--", "b"),
            ("--b \r\nx\r\n--b--", "b"),
            ("", "b"),
            ("--\r\nx\r\n----", ""),
        ] {
            check(body, boundary, None);
        }
    }
}
