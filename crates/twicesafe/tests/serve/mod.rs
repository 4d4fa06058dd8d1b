//! The server as processes: started, reloaded, stopped, killed; and its guide.

mod guide;
mod processes;
mod setup;
mod world;
