//! The commands of operators, on every kind of store: what they print, what they say, how they end.

mod deciding;
mod guide;
mod looking;
mod manual;
mod proving;
mod world;
