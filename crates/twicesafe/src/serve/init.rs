//! `twicesafe init`: three questions, one file with comments.

use std::io::{self, BufRead, Write};
use std::path::PathBuf;

use clap::Args;
use twicesafe_core::Code;

use super::say;
use crate::failure::Failure;

#[derive(Args)]
pub(crate) struct Init {
    /// The file to write.
    #[arg(default_value = "twicesafe.yaml")]
    file: PathBuf,
    /// Where the ledger is, in place of the first question.
    #[arg(long = "ledger-address", value_name = "ADDRESS")]
    ledger: Option<String>,
    /// Where to listen, in place of the second question.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Where alerts go, in place of the third question; empty for nowhere.
    #[arg(long, value_name = "WHERE")]
    alert: Option<String>,
}

pub(super) fn run(asked: &Init, out: &mut impl Write) -> Result<(), Failure> {
    let mut answers = io::stdin().lock();
    let mut ask = |given: &Option<String>, question: &str, default: &str| -> Result<String, Failure> {
        if let Some(given) = given {
            return Ok(given.clone());
        }
        let shown = if default.is_empty() { String::new() } else { format!(" [{default}]") };
        let _ = write!(io::stderr(), "{question}{shown}: ");
        let mut line = String::new();
        answers.read_line(&mut line)?;
        Ok(match line.trim() {
            "" => default.to_owned(),
            text => text.to_owned(),
        })
    };
    let ledger =
        ask(&asked.ledger, "Where is the ledger? (sqlite:PATH or postgres://...)", "sqlite:./twicesafe.db")?;
    let listen = ask(&asked.listen, "Where should the server listen?", "127.0.0.1:4080")?;
    let alert = ask(
        &asked.alert,
        "Where should alerts go? (a Slack-compatible webhook, ${ENV}, mailto:..., or nothing)",
        "",
    )?;
    let text = file(&ledger, &listen, &alert);
    if let Err(why) = twicesafe_server::config::parse(&text) {
        return Err(Failure::coded(
            Code::ConfigurationInvalid,
            format!("that would not be a valid configuration: {why}"),
            "Answer the questions otherwise; nothing was written.",
        ));
    }
    let mut options = std::fs::OpenOptions::new();
    // What was answered may hold a password.
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options
        .write(true)
        .create_new(true)
        .open(&asked.file)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    if let Err(error) = written {
        return Err(Failure::coded(
            Code::BadInputFile,
            format!("{} cannot be written: {error}", asked.file.display()),
            "Name another file, or move the old one away; nothing is overwritten.",
        ));
    }
    writeln!(out, "{}", asked.file.display())?;
    say("Next: twicesafe config check, then twicesafe serve.");
    Ok(())
}

fn file(ledger: &str, listen: &str, alert: &str) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let is_mail = alert.starts_with("mailto:");
    let people = match alert {
        "" => "# people:\n#   ops:\n#     alert: \"${SLACK_HOOK}\"        # a Slack-compatible webhook, mailto:..., or { webhook: URL }\n#     rights: [approve, review]    # approve what is held; review what may or may not have happened\n".to_owned(),
        alert => format!(
            "people:\n  ops:\n    alert: {}\n    rights: [approve, review]    # approve what is held; review what may or may not have happened\n    # scopes: [billing/]         # only about these\n",
            quoted(alert)
        ),
    };
    let smtp = match is_mail {
        true => {
            "smtp:\n  host: localhost\n  security: none                 # starttls (otherwise), tls, or none for a relay on this machine\n  from: twicesafe@localhost\n"
        }
        false => {
            "# smtp: { host: mail.example.com, from: twicesafe@example.com, user: twicesafe, password: \"file:/run/secrets/smtp\" }\n"
        }
    };
    format!(
        "# Twicesafe. Check it with: twicesafe config check. Its schema: twicesafe config schema.
# Secrets are written as ${{ENV}} or file:PATH, never out.

# Where everything is remembered. Every command finds it here.
ledger: {}

# Where the server listens. On a loopback address it works without tokens; elsewhere make one first: twicesafe token create.
# Apart, if the world should reach approval links only: listen: {{ public: ':4080', admin: 127.0.0.1:4081 }}
listen: {}

# tls: {{ certificate: /etc/twicesafe/cert.pem, key: /etc/twicesafe/key.pem }}

# Who is asked and told.
{people}
# Systems that effects go to. Callers use http://127.0.0.1:4080/to/crm/contacts instead of https://crm.example.com/contacts.
# destinations:
#   stripe: {{ use: stripe, auth: {{ bearer: \"${{STRIPE_KEY}}\" }}, key: request.body.metadata.order_id }}
#   crm:
#     base: https://crm.example.com
#     auth: {{ bearer: \"file:/run/secrets/crm\" }}
#     mode: observe                  # pass everything on and record; remove it to guard
#     routes:
#       - match: POST /contacts
#         action: contact.create
#         key: request.body.typeform_response_id
#         recovery: person           # or repeat, native-key, {{ lookup: {{ get: ... }} }}

# What people's browsers find the server at, for links in alerts.
# links: {{ base: https://twicesafe.example.com, expire: 24h }}

# When people are told that something has waited for too long.
# alerts: {{ overdue_after: 4h }}

# The mail server for alerts by mail.
{smtp}
# Where traces go, and how the server logs.
# traces: {{ otlp: http://127.0.0.1:4318 }}
# logs: json
",
        quoted(ledger),
        quoted(listen)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        for alert in ["", "https://hooks.slack.example/T1", "mailto:ops@example.com", "${HOOK}"] {
            let text = file("sqlite:./x.db", "127.0.0.1:4080", alert);
            let read = twicesafe_server::config::parse(&text).expect("it is valid");
            assert_eq!(read.ledger_address().expect("no secret").as_deref(), Some("sqlite:./x.db"));
            assert_eq!(read.people.len(), usize::from(!alert.is_empty()));
        }
    }
}
