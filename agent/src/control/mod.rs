//! The control loop and what it works with.

pub mod adoption;
mod answers;
mod callers;
mod counts;
pub mod event_loop;
pub mod facts;
pub mod model;
mod persistence;
pub mod pods;
mod problems;
pub mod refused_sources;
mod repair;
pub mod underlay;
pub mod workers;
