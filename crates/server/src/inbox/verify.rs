//! Whether an event comes from who it says: the raw bytes, with any of several secrets and any of several signatures, compared
//! in constant time; its age is looked at once, here (S36).

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName};
use ring::{digest, hmac, signature};
use serde_json::Value;
use subtle::ConstantTimeEq;

use crate::config::inboxes::{Algorithm, Encoding, Signature, StampPlace};
use crate::gateway::expression::{Expression, OF_EVENT, Sight};
use crate::http::request::pairs;

/// Secrets of one inbox, and signatures of one header that are looked at.
const SECRETS_MAX: usize = 10;
const SIGNATURES_MAX: usize = 16;
/// Those with a public key cost more to check.
const PUBLIC_SIGNATURES_MAX: usize = 3;
/// How far the time of sending may be from now, where the provider says nothing.
const TOLERANCE_DEFAULT_MS: i64 = 300_000;
/// A public key on P-256 as senders give it: what stands before the point, and the point itself.
const SPKI_BYTES: usize = 91;
const POINT_BYTES: usize = 65;

/// What is needed to know an event's sender.
pub(crate) struct Verifier {
    ways: Vec<Way>,
    url: Option<String>,
}

/// What is looked at.
pub(crate) struct Signed<'a> {
    pub(crate) method: &'a str,
    pub(crate) query: Option<&'a str>,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a [u8],
    /// What expressions see of it, where a way needs it.
    pub(crate) view: &'a Value,
    /// Now, in milliseconds since 1970.
    pub(crate) now_ms: i64,
}

/// Why an event is not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Doubtful {
    /// There is no signature.
    Unsigned(String),
    /// None of the signatures is right with any of the secrets.
    Wrong,
    /// There is no time, or none that can be read.
    Timeless,
    /// It is right, and too old or too new: by so many seconds, against so many.
    Skewed { by_s: i64, tolerance_s: i64 },
}

/// One way to sign, with the secrets at hand.
struct Way {
    header: HeaderName,
    separator: Option<String>,
    prefix: String,
    algorithm: Algorithm,
    encoding: Encoding,
    signs: Vec<Part>,
    timestamp: Option<Stamp>,
    tolerance_ms: i64,
    keys: Vec<Key>,
    body_hash: Option<String>,
}

enum Key {
    Hmac(hmac::Key),
    Public(Vec<u8>),
    Plain(Vec<u8>),
}

#[derive(Debug, PartialEq)]
enum Part {
    Text(String),
    Body,
    Timestamp,
    Url,
    Method,
    Form,
    Header(HeaderName),
}

enum Stamp {
    Header(HeaderName, i64),
    Prefix(String),
    FieldMs(Expression),
}

impl Verifier {
    /// Reads how a provider signs. `secrets` are as an operator wrote them, revealed.
    pub(crate) fn read(
        ways: &[Signature],
        secrets: &[String],
        url: Option<&str>,
    ) -> Result<Self, (&'static str, String)> {
        if secrets.len() > SECRETS_MAX {
            return Err(("secrets", format!("there are more than {SECRETS_MAX}")));
        }
        if !ways.is_empty() && secrets.is_empty() {
            return Err((
                "secrets",
                "events are signed, and there is no secret to check signatures with".to_owned(),
            ));
        }
        let ways: Vec<Way> =
            ways.iter().map(|written| Way::read(written, secrets)).collect::<Result<_, _>>()?;
        let needs_url = ways.iter().any(|way| way.signs.contains(&Part::Url));
        if needs_url && url.is_none() {
            let words = "the signature covers the address that the sender has; write it: https://hooks.example.com/in/NAME";
            return Err(("url", words.to_owned()));
        }
        if let Some(url) = url {
            let is_fit = url.parse::<hyper::Uri>().is_ok_and(|uri| {
                uri.scheme().is_some() && uri.authority().is_some() && uri.query().is_none()
            });
            if !is_fit {
                return Err(("url", "this is not an address without a query".to_owned()));
            }
        }
        Ok(Self { ways, url: url.map(str::to_owned) })
    }

    /// Whether senders are known by signatures; otherwise they need a token.
    pub(crate) fn has_ways(&self) -> bool {
        !self.ways.is_empty()
    }

    /// Whether every signature covers the address that an event is sent to.
    pub(crate) fn covers_address(&self) -> bool {
        self.ways.iter().all(|way| way.signs.contains(&Part::Url))
    }

    /// Whether something in the event itself is needed to verify it.
    pub(crate) fn reads_events(&self) -> bool {
        self.ways.iter().any(|way| matches!(way.timestamp, Some(Stamp::FieldMs(_))))
    }

    /// Whether a header holds a signature or a secret, which is not kept.
    pub(crate) fn is_signature(&self, name: &HeaderName) -> bool {
        self.ways.iter().any(|way| way.header == name)
    }

    /// Says which secret it was, from 1.
    pub(crate) fn verify(&self, signed: &Signed<'_>) -> Result<usize, Doubtful> {
        let way = self.ways.iter().find(|way| way.applies(signed)).ok_or_else(|| {
            let names: Vec<&str> = self.ways.iter().map(|way| way.header.as_str()).collect();
            Doubtful::Unsigned(names.join(" or "))
        })?;
        let urls = self.urls(signed.query);
        way.verify(signed, &urls)
    }

    /// The address as the sender may have it: some say the usual port, some do not.
    fn urls(&self, query: Option<&str>) -> Vec<String> {
        let Some(url) = &self.url else { return vec![String::new()] };
        let with_query = |url: &str| match query {
            Some(query) => format!("{url}?{query}"),
            None => url.to_owned(),
        };
        let mut urls = vec![with_query(url)];
        if let Some((scheme, rest)) = url.split_once("://") {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let usual = if scheme == "https" { ":443" } else { ":80" };
            let (host, port) = match authority.rfind(':').filter(|at| !authority[*at..].contains(']')) {
                Some(at) => authority.split_at(at),
                None => (authority, ""),
            };
            let other = if port.is_empty() { usual } else { "" };
            urls.push(with_query(&format!("{scheme}://{host}{other}{path}")));
        }
        urls
    }
}

impl Way {
    fn read(written: &Signature, secrets: &[String]) -> Result<Self, (&'static str, String)> {
        let of_signature = |words: String| ("provider.signature", words);
        let header = header_name(&written.header).map_err(of_signature)?;
        let signs = parts(&written.signs).map_err(of_signature)?;
        let is_plain = written.algorithm == Algorithm::Secret;
        let covers_body = signs.iter().any(|part| matches!(part, Part::Body | Part::Form));
        if !is_plain && !covers_body && written.body_hash.is_none() {
            return Err(of_signature("the body is not signed: anybody could change it".to_owned()));
        }
        let timestamp = match &written.timestamp {
            None => None,
            Some(StampPlace::Header(name)) => {
                Some(Stamp::Header(header_name(name).map_err(of_signature)?, 1000))
            }
            Some(StampPlace::HeaderMs(name)) => {
                Some(Stamp::Header(header_name(name).map_err(of_signature)?, 1))
            }
            Some(StampPlace::Prefix(prefix)) => Some(Stamp::Prefix(prefix.clone())),
            Some(StampPlace::FieldMs(text)) => {
                Some(Stamp::FieldMs(Expression::parse(text, OF_EVENT).map_err(of_signature)?))
            }
        };
        if signs.contains(&Part::Timestamp) && timestamp.is_none() {
            return Err(of_signature("it signs {timestamp}, and does not say where that is".to_owned()));
        }
        let key = |(number, secret): (usize, &String)| {
            let wrong = |words: &str| ("secrets", format!("secret {}: {words}", number + 1));
            let text = secret.strip_prefix(written.key_prefix.as_str()).unwrap_or(secret);
            let bytes = decoded(text, written.key)
                .ok_or_else(|| wrong("it is not written as this provider's are; look whether it is whole"))?;
            if bytes.is_empty() {
                return Err(wrong("it is empty"));
            }
            Ok(match written.algorithm {
                Algorithm::HmacSha256 => Key::Hmac(hmac::Key::new(hmac::HMAC_SHA256, &bytes)),
                Algorithm::HmacSha1 => Key::Hmac(hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &bytes)),
                Algorithm::Ed25519 if bytes.len() == 32 => Key::Public(bytes),
                Algorithm::EcdsaP256 if bytes.len() == POINT_BYTES => Key::Public(bytes),
                Algorithm::EcdsaP256 if bytes.len() == SPKI_BYTES => {
                    Key::Public(bytes[SPKI_BYTES - POINT_BYTES..].to_vec())
                }
                Algorithm::Ed25519 | Algorithm::EcdsaP256 => {
                    return Err(wrong("it is not the sender's public key"));
                }
                Algorithm::Secret => Key::Plain(bytes),
            })
        };
        Ok(Self {
            header,
            separator: written.separator.clone(),
            prefix: written.prefix.clone(),
            algorithm: written.algorithm,
            encoding: written.encoding,
            signs,
            timestamp,
            tolerance_ms: written
                .tolerance
                .map_or(TOLERANCE_DEFAULT_MS, |span| i64::try_from(span.0.as_millis()).unwrap_or(i64::MAX)),
            keys: secrets.iter().enumerate().map(key).collect::<Result<_, _>>()?,
            body_hash: written.body_hash.clone(),
        })
    }

    fn applies(&self, signed: &Signed<'_>) -> bool {
        let has_hash = |name: &str| body_hash(signed, name).is_some();
        signed.headers.contains_key(&self.header) && self.body_hash.as_deref().is_none_or(has_hash)
    }

    fn verify(&self, signed: &Signed<'_>, urls: &[String]) -> Result<usize, Doubtful> {
        let signatures = self.signatures(signed.headers);
        let stamp = self.stamp(signed);
        if self.timestamp.is_some() && stamp.is_none() {
            return Err(Doubtful::Timeless);
        }
        if let Some(name) = &self.body_hash {
            let hash = body_hash(signed, name).and_then(|text| decoded(&text, Encoding::Hex));
            let own = digest::digest(&digest::SHA256, signed.body);
            if !hash.is_some_and(|hash| bool::from(hash.as_slice().ct_eq(own.as_ref()))) {
                return Err(Doubtful::Wrong);
            }
        }
        let stamp_text = stamp.as_ref().map_or("", |(text, _)| text.as_str());
        for url in urls {
            let message = self.message(signed, stamp_text, url).ok_or(Doubtful::Wrong)?;
            for (number, key) in self.keys.iter().enumerate() {
                if self.fits(key, &message, &signatures) {
                    return match &stamp {
                        Some((_, at_ms)) => self.in_time(*at_ms, signed.now_ms).map(|()| number + 1),
                        None => Ok(number + 1),
                    };
                }
            }
            if !self.signs.contains(&Part::Url) {
                break;
            }
        }
        Err(Doubtful::Wrong)
    }

    fn in_time(&self, at_ms: i64, now_ms: i64) -> Result<(), Doubtful> {
        let by_ms = now_ms.saturating_sub(at_ms);
        match by_ms.saturating_abs() <= self.tolerance_ms {
            true => Ok(()),
            false => Err(Doubtful::Skewed { by_s: by_ms / 1000, tolerance_s: self.tolerance_ms / 1000 }),
        }
    }

    fn items<'a>(&'a self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a str> {
        let values = headers.get_all(&self.header).iter().filter_map(|value| value.to_str().ok());
        let items = values.flat_map(|value| match &self.separator {
            Some(separator) => value.split(separator.as_str()).map(str::trim).collect::<Vec<_>>(),
            None => vec![value.trim()],
        });
        items.take(SIGNATURES_MAX)
    }

    fn signatures(&self, headers: &HeaderMap) -> Vec<Vec<u8>> {
        let given = self.items(headers).filter_map(|item| self.without_prefix(item));
        given.filter_map(|text| decoded(text, self.encoding)).collect()
    }

    /// What stands behind the prefix. The name of a scheme (`Basic`) is the same in small letters.
    fn without_prefix<'a>(&self, item: &'a str) -> Option<&'a str> {
        let (start, rest) = item.split_at_checked(self.prefix.len())?;
        let is_it = match self.header == AUTHORIZATION {
            true => start.eq_ignore_ascii_case(&self.prefix),
            false => start == self.prefix,
        };
        is_it.then_some(rest)
    }

    /// When it was sent, as it is written and in milliseconds.
    fn stamp(&self, signed: &Signed<'_>) -> Option<(String, i64)> {
        match self.timestamp.as_ref()? {
            Stamp::Header(name, factor) => {
                let text = signed.headers.get(name)?.to_str().ok()?;
                Some((text.to_owned(), text.trim().parse::<i64>().ok()?.checked_mul(*factor)?))
            }
            Stamp::Prefix(prefix) => {
                let text = self.items(signed.headers).find_map(|item| item.strip_prefix(prefix.as_str()))?;
                Some((text.to_owned(), text.parse::<i64>().ok()?.checked_mul(1000)?))
            }
            Stamp::FieldMs(expression) => {
                let sight = Sight { event: Some(signed.view), ..Sight::default() };
                let text = expression.name(&sight).ok()?.to_string();
                let at_ms = text.parse().ok()?;
                Some((text, at_ms))
            }
        }
    }

    fn message(&self, signed: &Signed<'_>, stamp: &str, url: &str) -> Option<Vec<u8>> {
        let mut message = Vec::with_capacity(signed.body.len() + 128);
        for part in &self.signs {
            match part {
                Part::Text(text) => message.extend_from_slice(text.as_bytes()),
                Part::Body => message.extend_from_slice(signed.body),
                Part::Timestamp => message.extend_from_slice(stamp.as_bytes()),
                Part::Url => message.extend_from_slice(url.as_bytes()),
                Part::Method => message.extend_from_slice(signed.method.as_bytes()),
                Part::Form => message.extend_from_slice(form(signed)?.as_bytes()),
                Part::Header(name) => message.extend_from_slice(signed.headers.get(name)?.as_bytes()),
            }
        }
        Some(message)
    }

    /// Whether any of the signatures is right with that key. Nobody is known yet: the message is gone through once.
    fn fits(&self, key: &Key, message: &[u8], given: &[Vec<u8>]) -> bool {
        match key {
            Key::Hmac(key) => {
                let tag = hmac::sign(key, message);
                given.iter().any(|given| bool::from(given.as_slice().ct_eq(tag.as_ref())))
            }
            Key::Public(key) => {
                let algorithm: &dyn signature::VerificationAlgorithm = match self.algorithm {
                    Algorithm::EcdsaP256 => &signature::ECDSA_P256_SHA256_ASN1,
                    _ => &signature::ED25519,
                };
                let key = signature::UnparsedPublicKey::new(algorithm, key);
                given.iter().take(PUBLIC_SIGNATURES_MAX).any(|given| key.verify(message, given).is_ok())
            }
            Key::Plain(secret) => {
                // Their lengths differ in most wrong ones; hashes have one length.
                let of = |bytes: &[u8]| digest::digest(&digest::SHA256, bytes);
                given.iter().any(|given| bool::from(of(secret).as_ref().ct_eq(of(given).as_ref())))
            }
        }
    }
}

fn header_name(text: &str) -> Result<HeaderName, String> {
    HeaderName::from_bytes(text.as_bytes()).map_err(|_| format!("`{text}` is not a header"))
}

fn body_hash(signed: &Signed<'_>, name: &str) -> Option<String> {
    let query = pairs(signed.query.unwrap_or_default());
    query.into_iter().find(|(own, _)| own == name).map(|(_, value)| value)
}

/// The fields of a form, sorted, each name followed by its value; nothing between them.
fn form(signed: &Signed<'_>) -> Option<String> {
    let media_type = signed.headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let media_type = media_type.split(';').next().unwrap_or_default().trim();
    // What is no form would not be signed at all.
    media_type.eq_ignore_ascii_case("application/x-www-form-urlencoded").then_some(())?;
    let mut fields = pairs(std::str::from_utf8(signed.body).ok()?);
    fields.sort();
    fields.dedup();
    Some(fields.into_iter().map(|(name, value)| name + &value).collect())
}

fn decoded(text: &str, encoding: Encoding) -> Option<Vec<u8>> {
    match encoding {
        Encoding::Text => Some(text.as_bytes().to_vec()),
        Encoding::Base64 => STANDARD.decode(text).or_else(|_| STANDARD_NO_PAD.decode(text)).ok(),
        Encoding::Hex => {
            let digits = text.as_bytes();
            let digit = |byte: u8| (byte as char).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            let byte = |pair: &[u8]| Some(digit(pair[0])? * 16 + digit(pair[1])?);
            digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(byte).collect::<Option<_>>())?
        }
    }
}

/// `v0:{timestamp}:{body}` in its parts.
fn parts(text: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        if !before.is_empty() {
            parts.push(Part::Text(before.to_owned()));
        }
        let (name, after) =
            after.split_once('}').ok_or_else(|| format!("`{text}` has a bracket that does not close"))?;
        parts.push(match name {
            "body" => Part::Body,
            "timestamp" => Part::Timestamp,
            "url" => Part::Url,
            "method" => Part::Method,
            "form" => Part::Form,
            _ => match name.strip_prefix("header:") {
                Some(header) => Part::Header(header_name(header)?),
                None => {
                    return Err(format!(
                        "`{{{name}}}` is nothing that is signed; there are body, timestamp, url, method, form, header:NAME"
                    ));
                }
            },
        });
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    Ok(parts)
}
