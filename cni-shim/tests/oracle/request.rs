//! Everything that is read of a request, held against what must always be so.
//! The tests and the fuzz target call it.
//!
//! A request is text: lines of `NAME=VALUE`, an empty line, and standard input.

#![allow(unreachable_pub)]

use cni_shim::Json;
use cni_shim::protocol::{CniResult, NetConf, Request, Verb, Version};

/// The environment and standard input of a request.
pub fn split(bytes: &[u8]) -> (Vec<(String, String)>, &[u8]) {
    let end = bytes.windows(2).position(|two| two == b"\n\n");
    let (head, input) = match end {
        Some(at) => (&bytes[..at], &bytes[at + 2..]),
        None => (bytes, &[][..]),
    };
    let head = String::from_utf8_lossy(head);
    let pairs = head.lines().filter_map(|line| line.split_once('='));
    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    (pairs.collect(), input)
}

/// Reads a request as the plugin does, and as every verb would.
pub fn read(bytes: &[u8]) {
    let (environment, input) = split(bytes);
    let variable = |name: &'static str| {
        let mut found = environment.iter().rev();
        found
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.into())
    };
    let request = Request::parse(variable);
    if let Ok(Some(Request::Add(target) | Request::Check(target) | Request::Del(target))) = request
    {
        for kind in ["host-local", &target.netns] {
            for path in target.path.candidates(kind) {
                assert!(path.ends_with(kind) && !kind.contains('/'));
            }
        }
    }
    for verb in [Verb::Add, Verb::Del, Verb::Check, Verb::Gc, Verb::Status] {
        if let Ok(conf) = NetConf::parse(input.to_vec(), verb) {
            assert!(verb.since().is_none() || conf.version >= Version::V0_4_0);
            assert!(conf.root.is_absolute());
            let _ = conf.check();
            if let Some(previous) = &conf.previous {
                result(previous, conf.version);
            }
        }
    }
    if let Ok(json) = Json::parse(input) {
        let again = Json::parse(json.to_string().as_bytes()).unwrap();
        assert_eq!(again, json);
        result(&json, Version::NEWEST);
    }
}

/// What is read as a result is written in every version, and read back the same.
fn result(json: &Json, assumed: Version) {
    let Ok(result) = CniResult::parse(json, assumed) else {
        return;
    };
    for version in Version::ALL {
        let Ok(written) = result.to_json(version) else {
            assert!(version <= Version::V0_2_0 && result.ips.is_empty());
            continue;
        };
        let written = Json::parse(written.to_string().as_bytes()).unwrap();
        let read = CniResult::parse(&written, Version::V0_1_0).unwrap();
        if version == Version::NEWEST {
            assert_eq!(read, result);
        }
    }
}
