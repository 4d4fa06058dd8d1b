//! Which headers and parameters of a query are credentials. This is the only list: what stores, compares, logs or shows a
//! request asks here (S45).

use hyper::header::HeaderName;

use crate::http::request::pairs;

/// Words in a name that mark a credential, wherever they stand, by their first letter.
const WORDS: [(u8, &[&str]); 6] = [
    (
        b'a',
        &[
            "accesskey",
            "api-key",
            "apikey",
            "assertion",
            "authent",
            "authkey",
            "authoris",
            "authorit",
            "authoriz",
        ],
    ),
    (b'b', &["bearer"]),
    (b'c', &["credential"]),
    (b'p', &["passphrase", "password", "privatekey"]),
    (b's', &["secret", "sessid", "session", "signature"]),
    (b't', &["token"]),
];
/// Parts of a name that mark one where they stand between separators.
const PARTS: [&str; 7] = ["auth", "cookie", "hmac", "jwt", "passwd", "pwd", "sig"];
/// Short names that parameters of a query have for credentials.
const SHORT_NAMES: [&str; 8] = ["code", "hmac", "jwt", "key", "pass", "passwd", "pwd", "sig"];
/// Keys that name something and open nothing.
const KEYS_OF_THINGS: [&str; 9] = [
    "idempotency-key",
    "partition-key",
    "primary-key",
    "routing-key",
    "row-key",
    "sort-key",
    "deduplication-key",
    "dedupe-key",
    "object-key",
];

/// Tells whether a header says who somebody is, as far as its name tells.
pub(crate) fn is_credential(name: &HeaderName) -> bool {
    is_named_so(name.as_str())
}

/// Tells the same of a parameter of a query.
pub(crate) fn is_credential_in_query(name: &str) -> bool {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = name.chars().map(plain).collect();
    let name = name.trim_matches('-');
    SHORT_NAMES.contains(&name) || is_named_so(name)
}

fn is_named_so(name: &str) -> bool {
    // Every header of every request is looked at: by its first letter before anything else.
    let begins_one = |(from, first): (usize, &u8)| {
        let words = WORDS.iter().find(|(letter, _)| letter == first).map_or(&[][..], |(_, words)| words);
        words.iter().any(|word| name.as_bytes()[from..].starts_with(word.as_bytes()))
    };
    name.as_bytes().iter().enumerate().any(begins_one)
        || name.split(['-', '_', '.']).any(|part| PARTS.contains(&part))
        || name.ends_with("-key") && !KEYS_OF_THINGS.iter().any(|thing| name.ends_with(thing))
}

/// Returns a query without its credentials, as it is written; `None` if nothing is left. `open` lists parameters that are named
/// like credentials and are none.
pub(crate) fn without_credentials(query: &str, open: &[String]) -> Option<String> {
    let left: Vec<&str> = query.split('&').filter(|part| !is_part_credential(part, open)).collect();
    (!left.is_empty()).then(|| left.join("&"))
}

/// Returns the credentials of a query, as they are written.
pub(crate) fn credentials_of<'a>(query: &'a str, open: &'a [String]) -> impl Iterator<Item = &'a str> {
    query.split('&').filter(|part| is_part_credential(part, open))
}

fn is_part_credential(part: &str, open: &[String]) -> bool {
    let is_open = |name: &str| open.iter().any(|open| open.eq_ignore_ascii_case(name));
    pairs(part).iter().any(|(name, _)| is_credential_in_query(name) && !is_open(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s45_credentials_are_told_by_their_names() {
        let secret = "authorization proxy-authorization www-authenticate cookie set-cookie x-auth x_auth_user x.auth \
            x-api-key apikey myapikeyid x-csrf-token xtoken tokens a-secret-b password x-hub-signature-256 sessionid \
            x-session stripe-signature x-access-key key-password private-key x-amz-credential passphrase";
        let plain = "accept content-type x-github-event x-github-delivery author x-author idempotency-key sort-key \
            my-partition-key x-keys keyboard cookies-accepted x-api-version t s a p pass sess signa x-aut";
        for (names, expected) in [(secret, true), (plain, false)] {
            for name in names.split_whitespace() {
                assert_eq!(is_credential(&HeaderName::from_static(name)), expected, "{name}");
            }
        }
        let secret = "api_key apiKey API-KEY access_token token client_secret sig signature code key hapikey auth[token] \
            X-Amz-Signature X-Amz-Security-Token X-Amz-Credential AWSAccessKeyId client_assertion jwt pwd PHPSESSID";
        let plain =
            "external_id id amount idempotency_key sort_key order author keyword codes country_code signed";
        for (names, expected) in [(secret, true), (plain, false)] {
            for name in names.split_whitespace() {
                assert_eq!(is_credential_in_query(name), expected, "{name}");
            }
        }
    }

    #[test]
    fn s45_a_query_is_left_as_it_is_written_but_for_its_credentials() {
        let none: [String; 0] = [];
        let query = "b=2&api%5Fkey=s&a=%20x&code=7&a=1";
        assert_eq!(without_credentials(query, &none).as_deref(), Some("b=2&a=%20x&a=1"));
        assert_eq!(
            without_credentials(query, &["code".to_owned()]).as_deref(),
            Some("b=2&a=%20x&code=7&a=1")
        );
        assert_eq!(without_credentials("sig=x", &none), None);
        assert_eq!(credentials_of(query, &none).collect::<Vec<_>>(), ["api%5Fkey=s", "code=7"]);
    }
}
