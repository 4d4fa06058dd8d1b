//! What lets people watch the server: metrics and traces.

mod metrics;
mod traces;

pub(crate) use metrics::Metrics;
pub(crate) use traces::{Span, Tracer};
