//! What an attacker would begin with who runs code inside a worker. A hook of the tests, behind the feature `faults`: with
//! [`InjectedFault::Escape`] each worker of a running service tries all of it once it is confined, and reports on standard error
//! how that went.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::net::UdpSocket;

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use crate::execute::execute;
use crate::faults::{self, InjectedFault};
use crate::sys::call;

/// One thing to try.
pub(super) struct Attempt {
    /// What, as an infinitive.
    pub(super) what: &'static str,
    /// How it went.
    pub(super) result: io::Result<()>,
}

/// Tries everything, in the calling thread.
pub(super) fn attempts() -> [Attempt; 5] {
    let attempt = |what, result| Attempt { what, result };
    [
        attempt("open a file", File::open("/proc/self/status").map(drop)),
        attempt("execute a program", executed()),
        attempt("make a socket", UdpSocket::bind("127.0.0.1:0").map(drop)),
        attempt("have itself traced", call::be_traced()),
        attempt("regain its capabilities", regain()),
    ]
}

/// Where the tests ask for it, tries everything.
///
/// # Errors
/// What is not refused with EPERM.
pub(super) fn try_where_asked() -> io::Result<()> {
    if !faults::is_set(InjectedFault::Escape) {
        return Ok(());
    }
    let mut escaped = Vec::new();
    let mut said = std::thread::current().name().unwrap_or("worker").to_owned();
    for Attempt { what, result } in attempts() {
        let refused = result.as_ref().err().and_then(io::Error::raw_os_error);
        said += &format!(", tried to {what}: {result:?}");
        if refused != Some(libc::EPERM) {
            escaped.push(what);
        }
    }
    said.push('\n');
    io::stderr().write_all(said.as_bytes())?;
    match escaped.is_empty() {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "a worker can {}",
            escaped.join(", ")
        ))),
    }
}

/// There is no such program: where the call is not refused, this one goes on all the same.
fn executed() -> io::Result<()> {
    let program = OsStr::new("/nonexistent/program");
    execute(program, vec![program.to_owned()], std::iter::empty()).map(drop)
}

fn regain() -> io::Result<()> {
    let all = CapabilitySet::all();
    let sets = CapabilitySets {
        effective: all,
        permitted: all,
        inheritable: all,
    };
    Ok(set_capabilities(None, sets)?)
}
