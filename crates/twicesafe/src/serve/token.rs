//! `twicesafe token`: who may use the API.

use std::io::Write;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use twicesafe_server::{NewToken, Right, Token};

use super::say;
use crate::failure::Failure;
use crate::output::{Table, parse_span, print_json, time};
use crate::{Common, place};

#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// Makes a token and prints it, this once.
    Create(Create),
    /// Lists tokens, without what would let anybody use them.
    List,
    /// Revokes a token; servers refuse it within two seconds.
    Revoke {
        /// Its name or id.
        token: String,
    },
}

#[derive(Args)]
pub(crate) struct Create {
    /// What it is called, for the journal: who uses it.
    #[arg(long)]
    name: String,
    /// What it may do: act, approve, review, admin.
    #[arg(long, value_delimiter = ',', default_value = "act", value_parser = parse_right)]
    rights: Vec<Right>,
    /// Whose it is: other tenants' scopes are out of its reach. Otherwise the tenant `default`.
    #[arg(long)]
    tenant: Option<String>,
    /// Scopes it reaches, and all below them. Otherwise all of its tenant's.
    #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ',')]
    scopes: Vec<String>,
    /// The person who uses it: their decisions count as theirs.
    #[arg(long)]
    person: Option<String>,
    /// How long it is good: 90d. Otherwise until it is revoked.
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    expires: Option<Duration>,
}

fn parse_right(text: &str) -> Result<Right, String> {
    Right::from_word(text).ok_or_else(|| "rights are act, approve, review and admin".to_owned())
}

pub(super) async fn run(asked: TokenCommand, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    let ledger = place::open(common).await?;
    match asked {
        TokenCommand::Create(asked) => {
            let new = NewToken {
                name: asked.name,
                tenant: asked.tenant,
                scopes: asked.scopes,
                rights: asked.rights,
                person: asked.person,
                expires_after: asked.expires,
            };
            let (text, token) = twicesafe_server::create(&ledger, new).await?;
            if common.json {
                let mut value = as_json(&token);
                value["token"] = json!(text);
                return Ok(print_json(out, &value)?);
            }
            writeln!(out, "{text}")?;
            say(
                "Keep it: it is not shown again. Send it as `Authorization: Bearer TOKEN` or `Twicesafe-Token: TOKEN`.",
            );
        }
        TokenCommand::List => {
            let tokens = twicesafe_server::list(&ledger).await?;
            if common.json {
                return Ok(tokens.iter().try_for_each(|token| print_json(out, &as_json(token)))?);
            }
            let mut table =
                Table::new(&["id", "name", "tenant", "rights", "scopes", "person", "made", "until", "state"]);
            for token in &tokens {
                let rights: Vec<_> = token.rights.iter().map(|right| right.as_str()).collect();
                table.row(vec![
                    token.id.clone(),
                    token.name.clone(),
                    token.tenant.clone(),
                    rights.join(","),
                    if token.scopes.is_empty() { "all".to_owned() } else { token.scopes.join(",") },
                    token.person.clone().unwrap_or_default(),
                    time(token.created_at()),
                    token.expires_at().map_or_else(String::new, time),
                    if token.revoked_at().is_some() { "revoked" } else { "" }.to_owned(),
                ]);
            }
            match table.is_empty() {
                true => say("There are no tokens: on a loopback address the server works without."),
                false => table.print(out)?,
            }
        }
        TokenCommand::Revoke { token } => {
            for token in twicesafe_server::revoke(&ledger, &token).await? {
                match common.json {
                    true => print_json(out, &as_json(&token))?,
                    false => writeln!(out, "{} {} revoked", token.id, token.name)?,
                }
            }
        }
    }
    Ok(())
}

fn as_json(token: &Token) -> serde_json::Value {
    json!({
        "id": token.id,
        "name": token.name,
        "tenant": token.tenant,
        "rights": token.rights,
        "scopes": token.scopes,
        "person": token.person,
        "created_at": time(token.created_at()),
        "expires_at": token.expires_at().map(time),
        "revoked_at": token.revoked_at().map(time),
    })
}
