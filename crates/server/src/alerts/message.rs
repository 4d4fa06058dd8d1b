//! What people are told.

use std::sync::Arc;

use serde_json::{Value, json};
use twicesafe_ledger::{Status, Stored, legible};

use crate::inbox::inbox_of;
use crate::wire::{IntentView, time};

/// Why somebody is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Held,
    Review,
    Overdue,
    Expired,
    OutOfAttempts,
    Stranded,
    Stuck,
    DoubleEffect,
    Altered,
}

impl Kind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Review => "review",
            Self::Overdue => "overdue",
            Self::Expired => "expired",
            Self::OutOfAttempts => "out-of-attempts",
            Self::Stranded => "stranded",
            Self::Stuck => "stuck",
            Self::DoubleEffect => "double-effect",
            Self::Altered => "altered",
        }
    }
}

/// One thing somebody is told.
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) stored: Arc<Stored>,
    pub(super) link: Option<String>,
    /// What came of the last attempt, where that is why somebody is told.
    pub(super) why: Option<String>,
}

/// Whether its lane stays closed until somebody does something.
fn is_somebody_waited_for(kind: Kind, status: Status) -> bool {
    status == Status::Review || kind == Kind::Stuck
}

impl Message {
    /// In one line.
    pub(super) fn subject(&self) -> String {
        let name = self.stored.record.name.as_ref();
        let (scope, key) = name.map_or(("", ""), |name| (name.scope.as_str(), name.key.as_str()));
        // A key comes from a caller: it may not read as words, or as a link, of ours.
        let key = legible::unlinked(key);
        let what = match self.kind {
            Kind::Review if scope == super::tail::SCOPE => {
                "is when the database begins to lack writes that it had acknowledged (TS0064): the ledger recovers, and keys it does not \
                 know are looked up or left to a person"
            }
            Kind::Held => "waits for your yes or no",
            Kind::Review => "may or may not have happened; somebody must look",
            Kind::Overdue => "has waited for a person for a long time",
            Kind::Expired => "was rejected: nobody said yes in time",
            Kind::OutOfAttempts => "is out of attempts; nothing is known to have happened",
            Kind::Stranded => {
                "did not happen, as far as is known, and its caller has not come back to try again"
            }
            Kind::Stuck if self.stored.record.doubt => {
                "may or may not have happened, and nothing more happens by itself"
            }
            Kind::Stuck => "has not happened, and nothing more happens by itself",
            Kind::DoubleEffect => "HAPPENED TWICE: two attempts report different external ids",
            Kind::Altered => "WAS CHANGED by something else than Twicesafe, and is not acted on (TS0062)",
        };
        format!("{scope} `{key}` {what}")
    }

    /// In some lines.
    pub(super) fn text(&self) -> String {
        let record = &self.stored.record;
        let mut text = self.subject();
        // Ours before what others wrote, so that none of theirs is taken for it.
        if let Some(link) = &self.link {
            text.push_str(&format!("\nDecide here: {link}"));
        }
        let requester = legible::unlinked(record.requested_by.as_str());
        text.push_str(&format!("\nAsked by {requester}, {}.", time(record.created_at)));
        if let Some(why) = &self.why {
            text.push_str(&format!("\nThe last attempt: {}.", legible::unlinked(why)));
        }
        if let Some(approval) = record.approval.as_ref().filter(|_| record.status == Status::Held) {
            text.push_str(&format!("\nUntil {}.", time(approval.expires_at)));
        }
        if let Some(place) = record
            .place
            .as_ref()
            .filter(|_| record.holds_lane() && is_somebody_waited_for(self.kind, record.status))
        {
            let lane = legible::unlinked(place.lane.as_str());
            text.push_str(&format!("\nThe lane `{lane}` waits until then."));
        }
        if self.link.is_none() {
            text.push_str(&self.commands());
        }
        text
    }

    /// The commands that show more. A key that cannot be shown as it is cannot be copied either.
    fn commands(&self) -> String {
        let name = self.stored.record.name.as_ref();
        let (scope, key) = name.map_or(("", ""), |name| (name.scope.as_str(), name.key.as_str()));
        if legible::unlinked(key) != key {
            return match inbox_of(scope) {
                Some(inbox) => format!("\nMore: twicesafe inbox list {inbox}"),
                None => format!("\nMore: twicesafe intents --scope {scope}"),
            };
        }
        let key = key.replace('\'', r"'\''");
        match inbox_of(scope) {
            Some(inbox) => format!(
                "\nMore: twicesafe inbox show {inbox} '{key}'\nHand it over again: twicesafe inbox replay {inbox} '{key}' --reason WHY"
            ),
            None => format!("\nMore: twicesafe show {scope} '{key}'"),
        }
    }

    pub(super) fn for_slack(&self) -> Value {
        // Slack reads these three as markup.
        let text = self.text().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        json!({ "text": text })
    }

    pub(super) fn for_programs(&self) -> Value {
        json!({
            "kind": self.kind.word(),
            "message": self.subject(),
            "why": self.why,
            "link": self.link,
            "intent": IntentView::of(&self.stored),
        })
    }
}
