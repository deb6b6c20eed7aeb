//! One request from beginning to end: environment, standard input, verb,
//! standard output.
//!
//! Standard output gets exactly one JSON value, or nothing where a verb
//! answers nothing; everything else goes to standard error.

use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use cni_shim::Json;
use cni_shim::protocol::net_conf::Rejection;
use cni_shim::protocol::{NetConf, Request, Version};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::{Value, json};

use crate::error::Error;
use crate::{add, check, delete, gc, status};

/// Serves the request of this process.
pub(crate) fn run() -> ExitCode {
    let request = match Request::parse(std::env::var_os) {
        Ok(Some(request)) => request,
        Ok(None) => return introduce(),
        Err(error) => return fail(&error.into(), Version::NEWEST),
    };
    let Some(verb) = request.verb() else {
        return print(&json!({
            "cniVersion": version_asked().unwrap_or(Version::NEWEST).name(),
            "supportedVersions": Version::names(),
        }));
    };
    let conf = match NetConf::read(io::stdin().lock(), verb) {
        Ok(conf) => conf,
        Err(Rejection { error, version }) => return fail(&error.into(), version),
    };
    match serve(&request, &conf) {
        Ok(Some(result)) => print(&result),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => fail(&error, conf.version),
    }
}

fn serve(request: &Request, conf: &NetConf) -> Result<Option<Value>, Error> {
    match request {
        Request::Add(target) => return add::add(target, conf).map(Some),
        Request::Del(target) => delete::delete(target, conf)?,
        Request::Check(target) => check::check(target, conf)?,
        Request::Gc(path) => gc::gc(path, conf)?,
        Request::Status(path) => status::status(path, conf)?,
        Request::Version => {}
    }
    Ok(None)
}

/// The `cniVersion` on standard input, which VERSION repeats. A caller need
/// neither send one nor close its end: this does not wait for what does not come at
/// once, and ignores what is no version.
fn version_asked() -> Option<Version> {
    let deadline = Instant::now() + PATIENCE;
    let stdin = io::stdin();
    let mut bytes = Vec::new();
    loop {
        let left = deadline.checked_duration_since(Instant::now())?;
        let wait = Timespec::try_from(left).ok()?;
        let ready = &mut [PollFd::new(&stdin, PollFlags::IN)];
        if rustix::event::poll(ready, Some(&wait)).ok()? == 0 {
            return None;
        }
        let mut part = [0; 4096];
        let length = stdin.lock().read(&mut part).ok()?;
        bytes.extend_from_slice(part.get(..length)?);
        match Json::parse(&bytes) {
            Ok(json) => return Version::named(json.get("cniVersion")?.text()?),
            Err(_) if length == 0 || bytes.len() > LONGEST => return None,
            Err(_) => {}
        }
    }
}

/// Says what this program is, to a user who ran it by hand.
fn introduce() -> ExitCode {
    eprintln!(
        "tartan-cni {}: the CNI plugin of Tartan\nCNI protocol versions supported: {}",
        env!("CARGO_PKG_VERSION"),
        Version::names().join(", ")
    );
    ExitCode::SUCCESS
}

fn fail(error: &Error, version: Version) -> ExitCode {
    print(&error.to_json(version));
    ExitCode::FAILURE
}

/// Where the runtime does not read its answer, the exit code says so.
fn print(value: &Value) -> ExitCode {
    let mut output = io::stdout().lock();
    match writeln!(output, "{value}").and_then(|()| output.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// How long VERSION waits for its input.
const PATIENCE: Duration = Duration::from_millis(50);

/// Bytes of input that VERSION reads.
const LONGEST: usize = 64 * 1024;
