//! The codes of error results: those of SPEC section 5, "Error", and from 100 on ours.

pub(crate) const VERSION: u32 = 1;
pub(crate) const FIELD: u32 = 2;
pub(crate) const ENVIRONMENT: u32 = 4;
pub(crate) const IO: u32 = 5;
pub(crate) const DECODE: u32 = 6;
pub(crate) const CONFIGURATION: u32 = 7;
pub(crate) const NETNS: u32 = 8;
pub(crate) const TRY_LATER: u32 = 11;
pub(crate) const NOT_AVAILABLE: u32 = 50;
pub(crate) const CUT_OFF: u32 = 51;
pub(crate) const EXHAUSTED: u32 = 100;
pub(crate) const BUSY: u32 = 101;
pub(crate) const REFUSED: u32 = 103;
pub(crate) const KERNEL: u32 = 104;
pub(crate) const INTERFACE_EXISTS: u32 = 105;
pub(crate) const NOT_AS_IT_SHOULD_BE: u32 = 106;
pub(crate) const DELEGATE_FAILED: u32 = 107;
