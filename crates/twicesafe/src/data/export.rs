//! `twicesafe export`: everything the ledger knows, as lines of JSON.

use std::io::Write;

use clap::Args;
use twicesafe_core::IntentId;
use twicesafe_ledger::{Header, LaneState, Line, LineCodec, LineSeal, Scope, Totals};

use super::{count, say};
use crate::failure::Failure;
use crate::output::time;
use crate::{Common, place};

/// Intents, and lanes, read at a time.
const PAGE: usize = 200;

#[derive(Args)]
pub(crate) struct Export {
    /// Only this scope, or all below it when it ends with a slash. That is an excerpt to read, and cannot be imported.
    #[arg(long, value_name = "PREFIX")]
    scope: Option<String>,
}

pub(super) async fn run(asked: Export, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    let scope = asked.scope.as_deref();
    if let Some(scope) = scope {
        Scope::new(scope.strip_suffix('/').unwrap_or(scope))?;
    }
    let ledger = place::open(common).await?;
    let mut export = ledger.store().export().await?;
    let (codec, at) = (LineCodec::default(), export.facts().at);
    let header = match scope {
        Some(scope) => Header::Excerpt { scope: scope.to_owned(), at },
        None => Header::Whole(export.facts().clone()),
    };
    let mut sealed = Sealed { seal: ledger.store().line_seal(), out: &mut *out };
    sealed.line(&header.to_text())?;
    let mut totals = Totals::default();
    let mut after = IntentId::new(0);
    loop {
        let page = export.intents(scope, after, PAGE).await?;
        let ended = page.len() < PAGE;
        for intent in page {
            after = intent.stored.id;
            totals.intents += 1;
            let intent = if scope.is_some() { intent.for_excerpt() } else { intent };
            sealed.line(&codec.to_text(&Line::Intent(Box::new(intent))))?;
        }
        if ended {
            break;
        }
    }
    if scope.is_none() {
        let mut after = LaneState::START;
        loop {
            let page = export.lanes(&after, PAGE).await?;
            let ended = page.len() < PAGE;
            totals.lanes += page.len() as u64;
            for lane in page {
                after = lane.clone();
                sealed.line(&codec.to_text(&Line::Lane(lane)))?;
            }
            if ended {
                break;
            }
        }
        for count in export.counts().await? {
            totals.counts += 1;
            sealed.line(&codec.to_text(&Line::Count(count)))?;
        }
    }
    sealed.line(&codec.to_text(&Line::End(totals)))?;
    if scope.is_none() {
        let seal = Line::Seal(sealed.seal.text());
        writeln!(out, "{}", codec.to_text(&seal))?;
    }
    out.flush()?;
    let intents = count(totals.intents, "intent", "intents");
    say(&match scope {
        Some(_) => {
            format!("Exported {intents} as of {}: an excerpt to read. It cannot be imported.", time(at))
        }
        None => format!(
            "Exported {intents} as of {}. It holds bodies and the key of name hashes: keep it like a backup.",
            time(at)
        ),
    });
    Ok(())
}

/// Writes lines, and seals them.
struct Sealed<'a, W> {
    seal: LineSeal,
    out: &'a mut W,
}

impl<W: Write> Sealed<'_, W> {
    fn line(&mut self, line: &str) -> std::io::Result<()> {
        self.seal.add(line);
        writeln!(self.out, "{line}")
    }
}
