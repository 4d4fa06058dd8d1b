//! Masks credentials of ours in what destinations answer: one that shows what it was sent would otherwise hand them to callers,
//! and to whoever reads the ledger (S22). What is masked keeps its length.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use hyper::header::{HeaderMap, HeaderValue};

use super::auth::without_scheme;
use super::template::percent_encode;
use crate::credentials::is_credential;

/// Shorter secrets are not looked for: they are found everywhere.
const SECRET_BYTES_MIN: usize = 8;
/// What is written in place of each byte.
const MASK: u8 = b'*';

/// Secrets in all forms in which they are looked for, the longest first.
#[derive(Default)]
pub(crate) struct Words(Vec<Box<[u8]>>);

impl Words {
    pub(crate) fn of<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let mut words: Vec<Box<[u8]>> = Vec::new();
        for secret in secrets.into_iter().filter(|secret| secret.len() >= SECRET_BYTES_MIN) {
            words.extend(forms(secret).into_iter().map(|form| form.into_bytes().into_boxed_slice()));
        }
        words.sort_by(|one, other| other.len().cmp(&one.len()).then(one.cmp(other)));
        words.dedup();
        Self(words)
    }
}

/// A secret as it is, and as it stands in JSON, in an address and in a page.
fn forms(secret: &str) -> [String; 6] {
    let quoted = serde_json::Value::from(secret).to_string();
    let in_json = quoted[1..quoted.len() - 1].to_owned();
    let mut in_address = String::new();
    percent_encode(secret, &mut in_address);
    let in_small_letters = in_address
        .split('%')
        .enumerate()
        .map(|(number, part)| match (number, part.split_at_checked(2)) {
            (0, _) | (_, None) => part.to_owned(),
            (_, Some((hex, rest))) => format!("%{}{rest}", hex.to_ascii_lowercase()),
        })
        .collect();
    let in_page =
        secret.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    [secret.to_owned(), in_json.replace('/', "\\/"), in_json, in_address, in_small_letters, in_page]
}

/// What is masked in the answers of one destination.
#[derive(Clone, Default)]
pub(crate) struct Masks {
    /// What the configuration names.
    pub(crate) configured: Arc<Words>,
    /// What was fetched.
    pub(crate) fetched: Arc<Words>,
}

impl Masks {
    /// What is masked in answers to requests with such headers.
    pub(crate) fn of_headers(headers: &HeaderMap) -> Self {
        let secret = headers.iter().filter(|(name, _)| is_credential(name));
        let texts = secret.filter_map(|(_, value)| value.to_str().ok()).map(without_scheme);
        let texts: Vec<String> = texts.collect();
        Self { configured: Arc::new(Words::of(texts.iter().map(String::as_str))), ..Self::default() }
    }

    fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.configured.0.iter().chain(&self.fetched.0).map(AsRef::as_ref)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.configured.0.is_empty() && self.fetched.0.is_empty()
    }

    /// Masks what stands in the values of headers.
    pub(crate) fn mask_headers(&self, headers: &mut HeaderMap) {
        if self.is_empty() {
            return;
        }
        for value in headers.values_mut() {
            if let Some(masked) = self.masked(value.as_bytes())
                && let Ok(masked) = HeaderValue::from_bytes(&masked)
            {
                *value = masked;
            }
        }
    }

    /// Masks what stands in bytes that are all there.
    pub(crate) fn mask(&self, bytes: Bytes) -> Bytes {
        self.masked(&bytes).map_or(bytes, Bytes::from)
    }

    /// The same bytes with masks, if anything is to be masked.
    fn masked(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut masked: Option<Vec<u8>> = None;
        for word in self.words() {
            let mut from = 0;
            while let Some(at) = found(masked.as_deref().unwrap_or(bytes), word, from) {
                let masked = masked.get_or_insert_with(|| bytes.to_vec());
                masked[at..at + word.len()].fill(MASK);
                from = at + word.len();
            }
        }
        masked
    }

    /// Returns how many bytes at the end could be the beginning of a secret.
    fn open_at_end(&self, bytes: &[u8]) -> usize {
        let begins = |word: &[u8]| {
            let most = word.len().saturating_sub(1).min(bytes.len());
            (1..=most)
                .rev()
                .find(|length| word.starts_with(&bytes[bytes.len() - length..]))
                .unwrap_or_default()
        };
        self.words().map(begins).max().unwrap_or_default()
    }
}

/// Where a word stands from some place on.
fn found(bytes: &[u8], word: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += bytes.get(at..)?.iter().position(|byte| *byte == word[0])?;
        if bytes[at..].starts_with(word) {
            return Some(at);
        }
        at += 1;
    }
}

/// Masks a body while it arrives. What could be the beginning of a secret is held back until it is known.
pub(crate) struct Masking {
    masks: Masks,
    held: BytesMut,
}

impl Masking {
    pub(crate) fn new(masks: Masks) -> Self {
        Self { masks, held: BytesMut::new() }
    }

    /// Takes a part, and returns what may go on.
    pub(crate) fn push(&mut self, part: Bytes) -> Bytes {
        if self.masks.is_empty() {
            return part;
        }
        let all = match self.held.is_empty() {
            true => part,
            false => {
                self.held.extend_from_slice(&part);
                self.held.split().freeze()
            }
        };
        let mut all = self.masks.masked(&all).map_or(all, Bytes::from);
        let open = self.masks.open_at_end(&all);
        self.held.extend_from_slice(&all.split_off(all.len() - open));
        all
    }

    /// Returns what was held back: nothing follows.
    pub(crate) fn end(&mut self) -> Bytes {
        self.held.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masks(secrets: &[&str]) -> Masks {
        Masks { configured: Arc::new(Words::of(secrets.iter().copied())), fetched: Arc::default() }
    }

    #[test]
    fn s22_secrets_are_masked_however_they_are_written() {
        let masks = masks(&["s\"cret/with spaces&more", "short"]);
        for text in [
            "a s\"cret/with spaces&more b",
            r#"{"a": "s\"cret/with spaces&more"}"#,
            r#"{"a": "s\"cret\/with spaces&more"}"#,
            "?a=s%22cret%2Fwith%20spaces%26more",
            "?a=s%22cret%2fwith%20spaces%26more",
            "<p>s&quot;cret/with spaces&amp;more</p>",
        ] {
            let masked = masks.masked(text.as_bytes()).expect(text);
            let masked = String::from_utf8(masked).expect("text");
            assert!(
                !masked.contains("cret") && masked.contains("****") && masked.len() == text.len(),
                "{masked}"
            );
        }
        assert_eq!(masks.masked(b"short things stay as they are"), None);
    }

    #[test]
    fn s22_a_secret_in_two_parts_is_masked_and_nothing_else_is_lost() {
        let text = b"sk_liv sk_live_sk_live_12345 and sk_live_12345sk_live_123".as_slice();
        let expected = b"sk_liv sk_live_************* and *************sk_live_123".as_slice();
        for size in 1..text.len() {
            let mut masking = Masking::new(masks(&["sk_live_12345"]));
            let mut all = Vec::new();
            for part in text.chunks(size) {
                all.extend_from_slice(&masking.push(Bytes::copy_from_slice(part)));
            }
            all.extend_from_slice(&masking.end());
            assert_eq!(all, expected, "{size}: {}", String::from_utf8_lossy(&all));
        }
    }
}
