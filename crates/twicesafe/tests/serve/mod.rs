//! The server as processes: started, reloaded, stopped, killed; and its guide.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may say so")]

mod ai;
mod gateway;
mod guide;
mod guides;
mod inbox;
mod pressure;
mod processes;
mod setup;
mod silence;
mod world;
