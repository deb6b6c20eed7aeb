#![no_main]
#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/laws/oracle.rs"]
mod oracle;

fuzz_target!(|bytes: &[u8]| oracle::pull(bytes));
