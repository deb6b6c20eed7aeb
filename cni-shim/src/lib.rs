//! The attachment record and its address range.
