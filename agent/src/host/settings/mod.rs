//! Kernel settings under `/proc/sys/net` and features of interfaces: which ones Tartan sets, and the record
//! of their former values.

mod features;
mod proxy_arp;
pub(super) mod record;
pub(super) mod setting;
pub(super) mod sysctls;
