//! Address allocation.
