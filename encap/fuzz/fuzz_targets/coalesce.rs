#![no_main]
#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/laws/streams.rs"]
mod streams;

fuzz_target!(|bytes: &[u8]| streams::coalesce(bytes));
