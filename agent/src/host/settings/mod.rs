//! Kernel settings under `/proc/sys/net`: which ones Tartan sets, and the record
//! of their former values.

mod proxy_arp;
pub(super) mod record;
pub(super) mod setting;
pub(super) mod sysctls;
