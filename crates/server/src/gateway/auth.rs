//! How the server identifies itself at a destination. Secrets are read when the configuration is, and never stored or logged
//! (S41).

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use base64::Engine;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request};

use super::mask::Words;
use super::template::percent_encode;
use super::upstream::{Base, Care, Failure, Upstream, tls_client};
use crate::config::destinations::{Auth, DestinationTls, OAuth, OAuthCredentials};

/// How long a token is good where nobody says, and how long before its end another one is fetched.
const TOKEN_TIME_DEFAULT: Duration = Duration::from_secs(300);
const TOKEN_MARGIN: Duration = Duration::from_secs(30);
/// Largest answer of a place that gives tokens, and how long it may take.
const TOKEN_BYTES_MAX: usize = 64 << 10;
const TOKEN_FETCH_TIME_MAX: Duration = Duration::from_secs(10);

/// What is shown to a destination.
pub(crate) enum Credentials {
    /// Nothing.
    None,
    Header(HeaderName, HeaderValue),
    Fetched(Box<Fetched>),
}

/// A token that is fetched, and fetched again.
pub(crate) struct Fetched {
    place: Upstream,
    form: String,
    /// Who asks, where that is not in the form.
    shown: Option<HeaderValue>,
    token: tokio::sync::Mutex<Option<(HeaderValue, Instant)>>,
    recent: RwLock<Recent>,
}

/// Tokens that were shown lately: an answer to one of them may come after the next one was fetched.
#[derive(Default)]
struct Recent {
    tokens: VecDeque<String>,
    words: Arc<Words>,
}

/// Tokens that are remembered to be masked.
const RECENT_TOKENS_MAX: usize = 4;

impl Credentials {
    /// `tls`: what the destination is trusted by, and where tokens are given, too.
    pub(crate) fn read(auth: &Auth, tls: Option<&DestinationTls>) -> Result<Self, String> {
        let reveal = |secret: &crate::config::Secret| secret.reveal().map_err(|error| error.to_string());
        Ok(match auth {
            Auth::None => Self::None,
            Auth::Bearer(token) => {
                Self::Header(AUTHORIZATION, secret(&format!("Bearer {}", reveal(token)?))?)
            }
            Auth::Basic(basic) => {
                Self::Header(AUTHORIZATION, self::basic(&reveal(&basic.user)?, &reveal(&basic.password)?)?)
            }
            Auth::Header(own) => {
                let name = HeaderName::from_bytes(own.name.as_bytes())
                    .map_err(|_| format!("`{}` is not a header", own.name))?;
                Self::Header(name, secret(&reveal(&own.value)?)?)
            }
            Auth::OAuth(oauth) => Self::Fetched(Box::new(Fetched::read(oauth, tls)?)),
        })
    }

    /// The header that shows who the server is; `None` where nobody asks.
    pub(crate) async fn shown(&self) -> Result<Option<(HeaderName, HeaderValue)>, String> {
        match self {
            Self::None => Ok(None),
            Self::Header(name, value) => Ok(Some((name.clone(), value.clone()))),
            Self::Fetched(fetched) => Ok(Some((AUTHORIZATION, Box::pin(fetched.token()).await?))),
        }
    }

    /// What was fetched and must not be seen in answers.
    pub(crate) fn fetched(&self) -> Option<Arc<Words>> {
        match self {
            Self::Fetched(fetched) => {
                Some(fetched.recent.read().unwrap_or_else(PoisonError::into_inner).words.clone())
            }
            Self::None | Self::Header(..) => None,
        }
    }

    /// The destination did not take them: what was fetched is fetched anew.
    pub(crate) async fn refused(&self) {
        if let Self::Fetched(fetched) = self {
            *fetched.token.lock().await = None;
        }
    }
}

/// Returns what callers must not see of how the server identifies itself.
pub(super) fn secrets(auth: &Auth) -> Vec<String> {
    let reveal = |secret: &crate::config::Secret| secret.reveal().unwrap_or_default();
    let encoded = |user: &str, password: &str| {
        base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"))
    };
    match auth {
        Auth::None => Vec::new(),
        Auth::Bearer(token) => vec![reveal(token)],
        Auth::Basic(basic) => {
            let (user, password) = (reveal(&basic.user), reveal(&basic.password));
            let encoded = encoded(&user, &password);
            // The user is the secret where there is no password.
            vec![encoded, if password.is_empty() { user } else { password }]
        }
        Auth::Header(own) => vec![without_scheme(&reveal(&own.value))],
        Auth::OAuth(oauth) => {
            let (id, secret) = (reveal(&oauth.client_id), reveal(&oauth.client_secret));
            vec![encoded(&id, &secret), secret]
        }
    }
}

/// Longest name of a scheme, as `Bearer`.
const SCHEME_BYTES_MAX: usize = 12;

/// Returns the secret that a header holds: it may stand behind the name of a scheme.
pub(super) fn without_scheme(text: &str) -> String {
    let is_scheme =
        |word: &str| word.len() <= SCHEME_BYTES_MAX && word.bytes().all(|byte| byte.is_ascii_alphabetic());
    let secret = text.split_once(' ').filter(|(scheme, _)| is_scheme(scheme)).map(|(_, secret)| secret);
    secret.unwrap_or(text).to_owned()
}

fn basic(user: &str, password: &str) -> Result<HeaderValue, String> {
    secret(&format!(
        "Basic {}",
        base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"))
    ))
}

fn secret(text: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(text).map_err(|_| "the secret cannot be in a header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

impl Fetched {
    fn read(oauth: &OAuth, tls: Option<&DestinationTls>) -> Result<Self, String> {
        let reveal = |secret: &crate::config::Secret| secret.reveal().map_err(|error| error.to_string());
        let base =
            Base::parse(&oauth.token_url).map_err(|_| format!("`{}` is not an address", oauth.token_url))?;
        let (id, secret) = (reveal(&oauth.client_id)?, reveal(&oauth.client_secret)?);
        let mut form = "grant_type=client_credentials".to_owned();
        let in_form = |value| (oauth.credentials == OAuthCredentials::Form).then_some(value);
        let fields = [
            ("client_id", in_form(&id)),
            ("client_secret", in_form(&secret)),
            ("scope", oauth.scope.as_ref()),
            ("audience", oauth.audience.as_ref()),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                form.push_str(&format!("&{name}="));
                percent_encode(value, &mut form);
            }
        }
        let shown = match oauth.credentials {
            OAuthCredentials::Form => None,
            OAuthCredentials::Header => Some(basic(&id, &secret)?),
        };
        // The address is an operator's own, whole and with its path.
        let place = Upstream::new(base, true, tls_client(tls)?);
        Ok(Self { place, form, shown, token: tokio::sync::Mutex::new(None), recent: RwLock::default() })
    }

    async fn token(&self) -> Result<HeaderValue, String> {
        // One at a time: the others wait for what the first one fetches.
        let mut token = self.token.lock().await;
        if let Some((value, until)) = &*token
            && Instant::now() < *until
        {
            return Ok(value.clone());
        }
        let fetched = tokio::time::timeout(TOKEN_FETCH_TIME_MAX, self.fetch())
            .await
            .unwrap_or_else(|_| Err("it took too long".to_owned()))
            .map_err(|why| format!("no token was given: {why}"))?;
        *token = Some(fetched.clone());
        Ok(fetched.0)
    }

    /// Masks a token from now on.
    fn remember(&self, token: &str) {
        let mut recent = self.recent.write().unwrap_or_else(PoisonError::into_inner);
        if recent.tokens.iter().any(|known| known == token) {
            return;
        }
        recent.tokens.push_back(token.to_owned());
        if recent.tokens.len() > RECENT_TOKENS_MAX {
            recent.tokens.pop_front();
        }
        recent.words = Arc::new(Words::of(recent.tokens.iter().map(String::as_str)));
    }

    async fn fetch(&self) -> Result<(HeaderValue, Instant), String> {
        let mut request = Request::new(Full::new(Bytes::from(self.form.clone())));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.place.base().join("")?;
        request
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        if let Some(shown) = &self.shown {
            request.headers_mut().insert(AUTHORIZATION, shown.clone());
        }
        let started = Instant::now();
        let exchanged = self.place.exchange(request, Care::Little, || Ok(())).await;
        let (response, lent) = exchanged.map_err(|failure| match failure {
            Failure::NotSent(why) | Failure::Unknown(why) => why,
        })?;
        let status = response.status();
        let body = Limited::new(response.into_body(), TOKEN_BYTES_MAX)
            .collect()
            .await
            .map_err(|_| "the answer was cut short or too large".to_owned())?
            .to_bytes();
        lent.give_back();
        if !status.is_success() {
            return Err(format!("it answered {}", status.as_u16()));
        }
        let answer: serde_json::Value =
            serde_json::from_slice(&body).map_err(|_| "the answer is not JSON".to_owned())?;
        let text = answer["access_token"].as_str().ok_or("the answer has no access_token")?;
        let value = secret(&format!("Bearer {text}"))?;
        self.remember(text);
        let good_for = answer["expires_in"].as_u64().map_or(TOKEN_TIME_DEFAULT, Duration::from_secs);
        Ok((value, started + good_for.saturating_sub(TOKEN_MARGIN)))
    }
}
