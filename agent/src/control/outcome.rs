//! Why the control loop ends.

/// Why the loop ended.
#[derive(Debug)]
pub enum End {
    /// SIGTERM.
    Asked,
    /// The keeper is gone.
    KeeperEnded,
    /// Another program's service has taken its place.
    Replaced,
    /// The lock, which this service gave up, is not had again, so that another may read; why.
    Locked(String),
    /// Its files have changed, and a new start takes them.
    Reload,
    /// Only a new start helps; why.
    Restart(String),
}

/// Only a new start helps; why.
#[derive(Debug)]
pub struct Restart(pub String);
