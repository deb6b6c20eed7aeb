//! Tartan's packet engine.

pub mod spec;
