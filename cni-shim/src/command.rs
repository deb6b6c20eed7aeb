//! One request from beginning to end: environment, standard input, verb,
//! standard output.
//!
//! The order is that of the reference plugins (libcni skel): environment
//! first (code 4), then standard input (5), JSON (6), name (7), version (1),
//! then the verb. Standard output gets exactly one JSON value, or nothing
//! where a verb answers nothing; everything else goes to standard error.

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::error::Error;
use crate::net_conf::{NetConf, Rejection, Version};
use crate::request::Request;
use crate::{add, delete, status};

/// Serves the request of this process.
pub(crate) fn run() -> ExitCode {
    let request = match Request::parse(std::env::var_os) {
        Ok(Some(request)) => request,
        Ok(None) => return introduce(),
        Err(error) => return fail(&error.into(), Version::NEWEST),
    };
    if request == Request::Version {
        return print(&json!({
            "cniVersion": Version::NEWEST.name(),
            "supportedVersions": Version::names(),
        }));
    }
    let conf = match NetConf::read(io::stdin().lock()) {
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
        Request::Add(request) => add::add(request, conf).map(Some),
        Request::Del(key) => delete::delete(key, conf).map(|()| None),
        Request::Status => status::status(conf).map(|()| None),
        Request::Version => Ok(None),
    }
}

/// Somebody ran the plugin by hand.
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

/// A runtime that does not read its answer has to be told by the exit code.
fn print(value: &Value) -> ExitCode {
    let mut output = io::stdout().lock();
    match writeln!(output, "{value}").and_then(|()| output.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
