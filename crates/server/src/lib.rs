//! The server: one process that speaks HTTP, knows who is asking, holds and releases what needs a person, tells people when
//! something waits for them, and can be watched.
//!
//! It is a door: it turns requests into intents and verdicts into answers by one table (S27), and holds no state about effects.
//! Every rule is in the core; every effect of its own (alerts) passes through `ledger.run`.

mod access;
mod alerts;
mod api;
pub mod catalog;
mod client;
pub mod config;
mod credentials;
mod error;
pub mod figures;
mod gateway;
mod http;
mod identities;
mod inbox;
mod pages;
mod server;
mod version;
mod watch;
pub mod wire;

pub use access::{NewToken, Right, Token, create, is_reserved, list, revoke};
pub use alerts::is_stuck;
pub use error::ServerError;
pub use gateway::{Observed, Pausable, Spec, is_pin, observed, pause, paused, resume, specs};
pub use inbox::{
    BODY_GONE, BODY_GONE_HINT, EventAt, ProviderEntry, Putting, event_named, forget_event, is_done_otherwise,
    park_event, provider, provider_source, providers, put_event, replay_event, resolve, scope_of,
};
pub use server::{Control, Server, Signals, run};

/// The OpenAPI 3.1 document of the API.
pub fn openapi() -> serde_json::Value {
    api::document()
}
