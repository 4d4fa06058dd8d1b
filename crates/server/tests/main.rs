//! The server, started for real on a port of its own, and spoken to over sockets.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may say so")]

mod access;
mod alerts;
mod api;
mod approvals;
mod claims;
mod contract;
mod faults;
mod gateway;
mod holders;
mod http2;
mod inbox;
mod pins;
mod watching;
mod world;
