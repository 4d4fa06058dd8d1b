//! Alerts by mail.

use lettre::message::header::ContentType;
use lettre::transport::smtp::authentication::Credentials;
use lettre::{AsyncSmtpTransport, AsyncTransport, Tokio1Executor};

use super::message::Message;
use crate::client::NoStatus;
use crate::config::{Smtp, SmtpSecurity};

/// Sends one mail. The message id is made from the key: mail programs show the same message once.
pub(super) async fn send(smtp: &Smtp, to: &str, message: &Message, key: &str) -> Result<(), NoStatus> {
    let unsent = |error: &dyn std::fmt::Display| NoStatus::NotSent(error.to_string());
    let from: lettre::message::Mailbox = smtp.from.parse().map_err(|error| unsent(&error))?;
    let domain = from.email.domain().to_owned();
    let id: String = key.chars().filter(char::is_ascii_alphanumeric).collect();
    let subject = message.subject();
    let mail = lettre::Message::builder()
        .from(from)
        .to(to.parse().map_err(|error| unsent(&error))?)
        .subject(format!("[twicesafe] {subject}"))
        .message_id(Some(format!("<{id}@{domain}>")))
        .header(ContentType::TEXT_PLAIN)
        .body(message.text())
        .map_err(|error| unsent(&error))?;
    let transport = match smtp.security {
        SmtpSecurity::Starttls => AsyncSmtpTransport::<Tokio1Executor>::starttls_relay(&smtp.host)
            .map_err(|error| unsent(&error))?,
        SmtpSecurity::Tls => {
            AsyncSmtpTransport::<Tokio1Executor>::relay(&smtp.host).map_err(|error| unsent(&error))?
        }
        SmtpSecurity::None => AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(&smtp.host),
    };
    let transport = match smtp.port {
        Some(port) => transport.port(port),
        None => transport,
    };
    let transport = match (&smtp.user, &smtp.password) {
        (Some(user), Some(password)) => {
            let password = password.reveal().map_err(|error| unsent(&error))?;
            transport.credentials(Credentials::new(user.clone(), password))
        }
        _ => transport,
    };
    transport.build().send(mail).await.map(drop).map_err(|error| match is_unsent(&error) {
        true => unsent(&error),
        false => NoStatus::Unknown(error.to_string()),
    })
}

/// The mail server said no, or never got to hear it.
fn is_unsent(error: &lettre::transport::smtp::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    let is_closed = cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::ConnectionRefused);
    is_closed || error.is_permanent() || error.is_transient() || error.is_client() || error.is_tls()
}
