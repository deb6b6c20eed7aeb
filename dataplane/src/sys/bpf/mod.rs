//! What the kernel path needs of bpf(2) beyond safe code: the tables' entries as plain bytes, and pins.

pub(crate) mod pin;

use crate::kernel_path::layout::{Counts, Flow, FlowKey, Peer, Pod, Settings};

/// Says of each type that its bytes are what bpf(2) may read and write.
macro_rules! plain {
    ($($type:ident),+) => {
        $(
            // WHY: aya passes keys and values to bpf(2) by address, and asks for this promise.
            // SAFETY: `repr(C)`, made of integers and arrays of integers alone, so every bit pattern is a value; it has
            // no padding (`layout!` asserts that each field begins where the one before it ends, and the last ends with
            // the structure), so no uninitialised byte is ever passed. It is `Copy` and borrows nothing.
            unsafe impl aya::Pod for $type {}
        )+
    };
}

plain!(Counts, Flow, FlowKey, Peer, Pod, Settings);
