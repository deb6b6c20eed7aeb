//! The host's side of the kernel path: programs as filters of traffic control, the VXLAN device in front of the format's
//! port, and the way to each peer.
//!
//! ```text
//!   underlay   ingress   underlay_in
//!   tunnel     egress    tunnel_out, of a TAP tunnel_out_ether
//!   NAME-gro   ingress   gro_in                                     the VXLAN device
//!   pod's end  ingress   pod_out, egress pod_in                     with flows alone
//! ```
//!
//! All of it is the kernel's and outlasts the agent. `tartan cleanup` knows the filters by their name and handle and the
//! device by its alias, and removes both.

mod disciplines;
pub mod filters;
mod leftovers;
mod made;
mod next_hops;
mod vxlan_device;

pub(in crate::host) use leftovers::{remove_device, remove_filters};
pub use next_hops::{NextHops, Way};
pub(in crate::host) use vxlan_device::is_ours as is_our_device;
pub use vxlan_device::{VxlanDevice, device_name};
